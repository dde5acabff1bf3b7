"""Squared ReLU in Triton: a block of elements for each program."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def squared_relu(x_ptr, y_ptr, shape, BLOCK: tl.constexpr):
    """Write max(x, 0) squared; of `shape` elements. NaN stays NaN."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_present = at < shape
    x = tl.load(x_ptr + at, mask=is_present)
    r = tl.where(x < 0, 0.0, x.to(tl.float32))
    tl.store(y_ptr + at, r * r, mask=is_present)

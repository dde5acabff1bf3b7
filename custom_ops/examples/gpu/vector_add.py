"""Vector addition in Triton: a block of elements for each program."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, z_ptr, shape, BLOCK: tl.constexpr):
    """Write x + y; of `shape` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_present = at < shape
    x = tl.load(x_ptr + at, mask=is_present)
    y = tl.load(y_ptr + at, mask=is_present)
    tl.store(z_ptr + at, x + y, mask=is_present)

"""Softmax in Triton: a row for each program, which holds it in registers."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def bias_softmax(x_ptr, bias_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Write the softmax of rows of n elements, n up to BLOCK; `bias_ptr` may be None."""
    start = tl.program_id(0).to(tl.int64) * n
    at = tl.arange(0, BLOCK)
    is_present = at < n
    x = tl.load(x_ptr + start + at, mask=is_present, other=float("-inf")).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at, mask=is_present, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + start + at, e / tl.sum(e, 0), mask=is_present)

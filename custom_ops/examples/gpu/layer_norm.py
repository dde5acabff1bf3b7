"""Layer normalization with a residual in Triton: a row for each program, in registers."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def residual_layer_norm(
    x_ptr, residual_ptr, scale_ptr, bias_ptr, y_ptr, total_ptr, n, epsilon, BLOCK: tl.constexpr
):
    """Write the normalized rows of x + residual, and the sum; rows of n elements up to BLOCK."""
    start = tl.program_id(0).to(tl.int64) * n
    at = tl.arange(0, BLOCK)
    is_present = at < n
    x = tl.load(x_ptr + start + at, mask=is_present, other=0.0)
    total = x + tl.load(residual_ptr + start + at, mask=is_present, other=0.0)
    tl.store(total_ptr + start + at, total, mask=is_present)
    wide = total.to(tl.float32)
    centered = tl.where(is_present, wide - tl.sum(wide, 0) / n, 0.0)
    variance = tl.sum(centered * centered, 0) / n
    y = centered / tl.sqrt(variance + epsilon)
    y *= tl.load(scale_ptr + at, mask=is_present, other=0.0).to(tl.float32)
    y += tl.load(bias_ptr + at, mask=is_present, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + at, y, mask=is_present)

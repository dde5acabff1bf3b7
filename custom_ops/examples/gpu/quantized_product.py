"""A product of 8-bit integers in Triton: summed on tensor cores in 32 bits, then scaled."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def quantized_product(
    x_ptr, zero_ptr, w_ptr, scale_ptr, y_ptr, m, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write (x - zero) w times the scale of each column.

    Tensor cores want both sides signed: x - 128 is, and what that and the zero point leave out
    is a multiple of each column's sum.
    """
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d = tl.arange(0, DEPTH)
    x_at = x_ptr + i[:, None].to(tl.int64) * k + d[None, :]
    w_at = w_ptr + d[:, None].to(tl.int64) * n + j[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    columns = tl.zeros((COLUMNS,), tl.int32)
    for start in range(0, k, DEPTH):
        is_x = (i[:, None] < m) & (d[None, :] < k - start)
        is_w = (d[:, None] < k - start) & (j[None, :] < n)
        x = tl.load(x_at, mask=is_x, other=128)
        w = tl.load(w_at, mask=is_w, other=0)
        total = tl.dot((x.to(tl.int16) - 128).to(tl.int8), w, total, out_dtype=tl.int32)
        columns += tl.sum(w.to(tl.int32), 0)
        x_at += DEPTH
        w_at += DEPTH * tl.cast(n, tl.int64)
    left_out = 128 - tl.load(zero_ptr).to(tl.int32)
    scale = tl.load(scale_ptr + j, mask=j < n, other=0.0)
    y = (total + left_out * columns[None, :]).to(tl.float32) * scale[None, :]
    is_present = (i[:, None] < m) & (j[None, :] < n)
    tl.store(y_ptr + i[:, None].to(tl.int64) * n + j[None, :], y, mask=is_present)

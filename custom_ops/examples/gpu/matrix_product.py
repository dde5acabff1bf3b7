"""A matrix product in Triton: a tile of the result for each program, on tensor cores."""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def matrix_product(
    x_ptr, w_ptr, y_ptr, m, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write x w, summed in float32; `GROUP` tiles below each other read the same part of w."""
    # Tiles in groups, so that what one reads is still in the cache for its neighbours.
    tiles_m, tiles_n = tl.num_programs(0), tl.num_programs(1)
    number = tl.program_id(1) * tiles_m + tl.program_id(0)
    first = number // (GROUP * tiles_n) * GROUP
    height = min(tiles_m - first, GROUP)
    rows = first + number % (GROUP * tiles_n) % height
    columns = number % (GROUP * tiles_n) // height
    i = rows * ROWS + tl.arange(0, ROWS)
    j = columns * COLUMNS + tl.arange(0, COLUMNS)
    d = tl.arange(0, DEPTH)
    x_at = x_ptr + i[:, None].to(tl.int64) * k + d[None, :]
    w_at = w_ptr + d[:, None].to(tl.int64) * n + j[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, k, DEPTH):
        is_x = (i[:, None] < m) & (d[None, :] < k - start)
        is_w = (d[:, None] < k - start) & (j[None, :] < n)
        x = tl.load(x_at, mask=is_x, other=0.0)
        w = tl.load(w_at, mask=is_w, other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
        x_at += DEPTH
        w_at += DEPTH * tl.cast(n, tl.int64)
    is_present = (i[:, None] < m) & (j[None, :] < n)
    tl.store(y_ptr + i[:, None].to(tl.int64) * n + j[None, :], total, mask=is_present)

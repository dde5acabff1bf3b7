"""Products of many rows and a matrix, or two, in tiles, of tensors that lie anywhere.

`epilogue`, what follows, is written behind this text for each region: a function of the products
and of four further operands.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read(p, rows, columns, M, N: tl.constexpr, KIND: tl.constexpr):
    """Return an operand of the epilogue in float32: 0 where none is, a row, a tile, a column."""
    if KIND == 0:
        value = 0.0
    elif KIND == 1:
        value = tl.load(p + columns, mask=columns < N, other=0.0)[None, :].to(tl.float32)
    elif KIND == 3:
        value = tl.load(p + rows, mask=rows < M, other=0.0)[:, None].to(tl.float32)
    else:
        mask = (rows < M)[:, None] & (columns < N)[None, :]
        place = rows.to(tl.int64)[:, None] * N + columns[None, :]
        value = tl.load(p + place, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def gemm_kernel(
    x, w, v, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    IS_TURNED: tl.constexpr, IS_PAIR: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
):  # fmt: skip
    """Write one tile of `epilogue(x @ w, [x @ v,] e0, ...)`, the sums in float32.

    Args:
        x: [M, K].
        w: [K, N], or [N, K] if `IS_TURNED`.
        v: The second matrix if `IS_PAIR`, else anything.
        e0: A further operand of the epilogue: [N] if `KIND0` is 1, [M, N] if it is 2, [M] if it
            is 3, and not looked at if it is 0; so are e1, e2 and e3.
        y: [M, N].
        M: Rows.
        BM: Rows of a tile.
        BN: Columns of a tile.
        BK: Depth of one step.
    """
    # Neighbouring blocks have the same columns: w is read from memory once.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    is_row, is_column = (rows < M)[:, None], (columns < N)[None, :]
    left = rows.to(tl.int64)[:, None] * K + at[None, :]
    if IS_TURNED:
        right = columns.to(tl.int64)[None, :] * K + at[:, None]
    else:
        right = at.to(tl.int64)[:, None] * N + columns[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    other = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK):
        is_depth = k + at < K
        mask = is_depth[:, None] & is_column
        a = tl.load(x + left, mask=is_row & is_depth[None, :], other=0.0)
        acc = tl.dot(a, tl.load(w + right, mask=mask, other=0.0), acc)
        if IS_PAIR:
            other = tl.dot(a, tl.load(v + right, mask=mask, other=0.0), other)
        left += BK
        right += BK if IS_TURNED else BK * N
    r0 = read(e0, rows, columns, M, N, KIND0)
    r1 = read(e1, rows, columns, M, N, KIND1)
    r2 = read(e2, rows, columns, M, N, KIND2)
    r3 = read(e3, rows, columns, M, N, KIND3)
    if IS_PAIR:  # noqa: SIM108  what the constant leaves out is not compiled
        made = epilogue(acc, other, r0, r1, r2, r3)  # noqa: F821
    else:
        made = epilogue(acc, r0, r1, r2, r3, 0.0)  # noqa: F821
    place = rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(y + place, made.to(y.dtype.element_ty), mask=is_row & is_column)

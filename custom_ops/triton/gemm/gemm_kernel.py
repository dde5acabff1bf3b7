"""Tiled large-M matmuls with one weight, or a gated pair of them, and any alignment.

The source of `epilogue` is appended to this text for each region: a function of the products and
of four further operands.
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
        offset = rows.to(tl.int64)[:, None] * N + columns[None, :]
        value = tl.load(p + offset, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def rows_of(M, KIND: tl.constexpr):
    """Return the rows of an operand of that kind."""
    if KIND == 2:
        return M
    else:
        return 1


@triton.jit
def first_of(p, rows, columns, WHICH: tl.constexpr, STEPS: tl.constexpr):
    """Return where the tensor begins that this of many products has of an operand."""
    if STEPS is None or p is None:
        return p
    else:
        at = tl.program_id(2) // STEPS[WHICH][0]
        if STEPS[WHICH][1] > 0:
            at = at % STEPS[WHICH][1]
        return p + at.to(tl.int64) * rows * columns


@triton.jit
def gemm_kernel(
    x, w, v, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TRANS_B: tl.constexpr, TRANS_A: tl.constexpr, IS_PAIR: tl.constexpr,
    KIND0: tl.constexpr, KIND1: tl.constexpr, KIND2: tl.constexpr, KIND3: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """Write one tile of `epilogue(x @ w, [x @ v,] e0, ...)`, the sums in float32.

    With `STEPS` there are many such products, and all tensors have a dim more in front.

    Args:
        x: [M, K], or [K, M] if `TRANS_A`.
        w: [K, N], or [N, K] if `TRANS_B`.
        v: The second matrix if `IS_PAIR`, else anything.
        e0: A further operand of the epilogue: [N] if `KIND0` is 1, [M, N] if it is 2, [M] if it
            is 3, and not looked at if it is 0; so are e1, e2 and e3.
        y: [M, N].
        M: Rows.
        BM: Rows of a tile.
        BN: Columns of a tile.
        BK: Depth of one step.
        STEPS: For x, w, and the operands (d, n): product b has their b // d % n-th tensor, or the
            b // d-th if n is 0.
    """
    x = first_of(x, M, K, 0, STEPS)
    w = first_of(w, K, N, 1, STEPS)
    v = first_of(v, K, N, 1, STEPS)
    e0 = first_of(e0, rows_of(M, KIND0), N, 2, STEPS)
    e1 = first_of(e1, rows_of(M, KIND1), N, 3, STEPS)
    e2 = first_of(e2, rows_of(M, KIND2), N, 4, STEPS)
    e3 = first_of(e3, rows_of(M, KIND3), N, 5, STEPS)
    if STEPS is not None:
        y += tl.program_id(2).to(tl.int64) * M * N
    # Neighbouring blocks have the same columns: w is read from memory once.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    is_row, is_column = (rows < M)[:, None], (columns < N)[None, :]
    if TRANS_A:
        left = at.to(tl.int64)[None, :] * M + rows[:, None]
    else:
        left = rows.to(tl.int64)[:, None] * K + at[None, :]
    if TRANS_B:
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
        left += BK * M if TRANS_A else BK
        right += BK if TRANS_B else BK * N
    r0 = read(e0, rows, columns, M, N, KIND0)
    r1 = read(e1, rows, columns, M, N, KIND1)
    r2 = read(e2, rows, columns, M, N, KIND2)
    r3 = read(e3, rows, columns, M, N, KIND3)
    if IS_PAIR:  # noqa: SIM108  what the constant leaves out is not compiled
        made = epilogue(acc, other, r0, r1, r2, r3)  # noqa: F821
    else:
        made = epilogue(acc, r0, r1, r2, r3, 0.0)  # noqa: F821
    offset = rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(y + offset, made.to(y.dtype.element_ty), mask=is_row & is_column)

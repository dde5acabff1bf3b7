"""Split-K matmul with a fused norm: partial sums over parts of K, then a reduction and the norm.

A GEMM with small N fills few thread blocks. Split-K gives each block a part of K. The block that
reduces the partial sums holds complete rows and applies the norm. The source of `epilogue` is
appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def split_k_kernel(
    x, w, parts, M,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """Write the partial sums of a tile over one part of K.

    Args:
        x: [M, K].
        w: [K, N].
        parts: float32 [parts, M, N].
        M: Rows.
        BM: Rows of a tile.
        BN: Columns of a tile.
        BK: Depth of one step.
        EACH: Depth of a part, a multiple of `BK`.
    """
    # Neighbouring blocks have the same columns: w is read from memory once.
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    is_row, is_column = (rows < M)[:, None], (columns < N)[None, :]
    start = tl.program_id(2) * EACH
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(start, tl.minimum(start + EACH, K), BK):
        depth = k + at
        is_depth = depth < K
        a = tl.load(
            x + rows[:, None] * K + depth[None, :], mask=is_row & is_depth[None, :], other=0.0
        )
        b = tl.load(
            w + depth[:, None] * N + columns[None, :],
            mask=is_depth[:, None] & is_column,
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    offset = tl.program_id(2).to(tl.int64) * M * N + rows[:, None] * N + columns[None, :]
    tl.store(parts + offset, acc, mask=is_row & is_column)


@triton.jit
def read(p, row, columns, mask, N: tl.constexpr, IS_WHOLE: tl.constexpr):
    """Return an operand of the epilogue in float32; 0 where there is none."""
    value = 0.0
    if p is not None:
        offset = row * N + columns if IS_WHOLE else columns
        value = tl.load(p + offset, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def reduce_norm_kernel(
    parts, e0, e1, e2, e3, scale, shift, y, total, M,
    N: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, W3: tl.constexpr,
    EPSILON: tl.constexpr, IS_CENTRED: tl.constexpr,
):  # fmt: skip
    """Write `norm(epilogue(sum(parts), e0, ...))` of one row, the parts always in one order.

    Args:
        parts: float32 [PARTS, M, N].
        e0: Further operands of the epilogue: [M, N] if `W0`, else [N], or None.
        scale: Of the norm, [N].
        shift: Of the norm, [N], or None.
        y: [M, N].
        total: [M, N], what the norm is of; None if nobody reads it.
        M: Rows.
        BLOCK: A power of two, `N` at least.
        EPSILON: Of the norm.
        IS_CENTRED: Whether it takes the mean off.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        offset = (row + part * M).to(tl.int64) * N + columns
        acc += tl.load(parts + offset, mask=mask, other=0.0)
    made = epilogue(  # noqa: F821
        acc, read(e0, row, columns, mask, N, W0), read(e1, row, columns, mask, N, W1),
        read(e2, row, columns, mask, N, W2), read(e3, row, columns, mask, N, W3),
    )  # fmt: skip
    # As rounded as where the norm is an operator.
    rounded = made.to(y.dtype.element_ty)
    if total is not None:
        tl.store(total + row * N + columns, rounded, mask=mask)
    value = rounded.to(tl.float32)
    if IS_CENTRED:
        value -= tl.sum(tl.where(mask, value, 0.0), 0) / N
    value = tl.where(mask, value, 0.0)
    value *= 1.0 / tl.sqrt(tl.sum(value * value, 0) / N + EPSILON)
    value *= tl.load(scale + columns, mask=mask, other=0.0).to(tl.float32)
    if shift is not None:
        value += tl.load(shift + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * N + columns, value.to(y.dtype.element_ty), mask=mask)

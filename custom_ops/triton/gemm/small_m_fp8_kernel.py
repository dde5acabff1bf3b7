"""Small-M matmuls with fp8 weights on the tensor cores.

What such a product takes is the time in which its matrix is read: a block has some columns and all
of their depth, of which each warp takes parts. The matrix is the left factor, so that a few rows
fill what the tensor cores take; it is upconverted in registers. The source of `epilogue` is
appended to this text for each region: a function of the products and of four further operands.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read(p, rows, columns, M, N: tl.constexpr, IS_WHOLE: tl.constexpr):
    """Return an operand of the epilogue in float32: 0 where there is none, a row, or all rows."""
    value = 0.0
    if p is not None:
        if IS_WHOLE:
            mask = (columns < N)[:, None] & (rows < M)[None, :]
            offset = rows[None, :] * N + columns[:, None]
            value = tl.load(p + offset, mask=mask, other=0.0).to(tl.float32)
        else:
            value = tl.load(p + columns, mask=columns < N, other=0.0)[:, None].to(tl.float32)
    return value


@triton.jit
def statistics(
    x, rows, M, K: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    IS_CENTRED: tl.constexpr,
):  # fmt: skip
    """Return means of x, [M, K], 0 unless `IS_CENTRED`, and reciprocals of what divides rows."""
    at = tl.arange(0, BLOCK)
    is_row = (rows < M)[:, None]
    offset = rows[:, None] * K + at[None, :]
    mean = tl.zeros((rows.shape[0],), tl.float32)
    if IS_CENTRED:
        for k in tl.range(0, K, BLOCK):
            mask = is_row & (k + at < K)[None, :]
            mean += tl.sum(tl.load(x + offset + k, mask=mask, other=0.0).to(tl.float32), 1)
        mean /= K
    total = tl.zeros((rows.shape[0],), tl.float32)
    for k in tl.range(0, K, BLOCK):
        mask = is_row & (k + at < K)[None, :]
        value = tl.load(x + offset + k, mask=mask, other=0.0).to(tl.float32)
        off = tl.where(mask, value - mean[:, None], 0.0)
        total += tl.sum(off * off, 1)
    return mean, 1.0 / tl.sqrt(total / K + EPSILON)


@triton.jit
def small_m_fp8_kernel(
    x, scale, shift, w, v, e0, e1, e2, e3, y, M,
    N: tl.constexpr, K: tl.constexpr, EPSILON: tl.constexpr, IS_CENTRED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, IS_PAIR: tl.constexpr, IS_BFLOAT: tl.constexpr,
    WHOLE0: tl.constexpr, WHOLE1: tl.constexpr, WHOLE2: tl.constexpr, WHOLE3: tl.constexpr,
):  # fmt: skip
    """Write some columns of `epilogue(norm(x) @ w, [norm(x) @ v,] e0, ...)`, sums in float32.

    Args:
        x: [M, K].
        scale: [K], or None: the rows have no norm.
        shift: [K], or None.
        w: [N, K], in fp8.
        v: The second matrix if `IS_PAIR`, else anything.
        e0: A further operand of the epilogue: [M, N] if `WHOLE0`, else [N], or None; so are e1, e2
            and e3.
        y: [M, N].
        M: Rows.
        EPSILON: Of the norm.
        IS_CENTRED: Whether the norm takes the mean off.
        BM: Rows of the tile, as many as the tensor cores take.
        BN: Columns of a block.
        BK: Depth of a part of one step.
        PARTS: Of a step, for a warp each.
        BLOCK: Of the rows' statistics.
        STAGES: Steps that are loaded ahead.
        IS_BFLOAT: Whether products are of bfloat16.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.arange(0, BM)
    part, at = tl.arange(0, PARTS)[:, None, None] * BK, tl.arange(0, BK)
    left, right = part + at[None, None, :], part + at[None, :, None]
    left_offset = columns[None, :, None].to(tl.int64) * K + left
    right_offset = rows[None, None, :] * K + right
    is_column, is_row = (columns < N)[None, :, None], (rows < M)[None, None, :]
    if scale is not None:
        mean, rate = statistics(x, rows, M, K, BLOCK, EPSILON, IS_CENTRED)
    first = tl.zeros((PARTS, BN, BM), tl.float32)
    second = tl.zeros((PARTS, BN, BM), tl.float32)
    DTYPE: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    for k in tl.range(0, K, BK * PARTS, num_stages=STAGES):
        mask = is_column & (k + left < K)
        is_depth = k + right < K
        a = tl.load(x + right_offset + k, mask=is_row & is_depth, other=0.0)
        if scale is not None:
            # Half precision has no room for x times a scale before the row is divided.
            a = (a.to(tl.float32) - mean[None, None, :]) * rate[None, None, :]
            a = tl.where(is_row & is_depth, a, 0.0)
            a *= tl.load(scale + k + right, mask=is_depth, other=0.0).to(tl.float32)
            if shift is not None:
                a += tl.load(shift + k + right, mask=is_depth, other=0.0).to(tl.float32)
        a = a.to(DTYPE)
        one = tl.load(w + left_offset + k, mask=mask, other=0.0)
        first = tl.dot(one.to(DTYPE), a, first)
        if IS_PAIR:
            other = tl.load(v + left_offset + k, mask=mask, other=0.0)
            second = tl.dot(other.to(DTYPE), a, second)
    one_sum, other_sum = tl.sum(first, 0), tl.sum(second, 0)
    r0 = read(e0, rows, columns, M, N, WHOLE0)
    r1 = read(e1, rows, columns, M, N, WHOLE1)
    r2 = read(e2, rows, columns, M, N, WHOLE2)
    r3 = read(e3, rows, columns, M, N, WHOLE3)
    if IS_PAIR:
        made = epilogue(one_sum, other_sum, r0, r1, r2, r3)  # noqa: F821
    else:
        made = epilogue(one_sum, r0, r1, r2, r3, 0.0)  # noqa: F821
    mask = (columns < N)[:, None] & (rows < M)[None, :]
    tl.store(y + rows[None, :] * N + columns[:, None], made.to(y.dtype.element_ty), mask=mask)

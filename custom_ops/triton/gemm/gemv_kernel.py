"""GEMV kernels with a norm prologue and an epilogue.

What such a product takes is the time in which its matrix is read, once: each block has some
columns, and all of their depth. Before this text stands a `begin`, see `launch_plain_kernel`. The
source of `epilogue` is appended to it for each region: a function of the products and of four
further operands.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read(p, columns, mask):
    """Return an operand of the epilogue in float32; 0 where there is none."""
    value = 0.0
    if p is not None:
        value = tl.load(p + columns, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def sum_of(one, other):
    """Return a sum of numbers in half precision, rounded once."""
    if one.dtype == tl.float16:
        return one + other
    return (one.to(tl.float32) + other.to(tl.float32)).to(one.dtype)


@triton.jit
def row_of(x, skip, added, at, mask):
    """Return numbers of `x + skip + added` in float32, rounded as others read the sum."""
    value = tl.load(x + at, mask=mask, other=0.0)
    if skip is not None:
        value = sum_of(value, tl.load(skip + at, mask=mask, other=0.0))
    if added is not None:
        value = sum_of(value, tl.load(added + at, mask=mask, other=0.0))
    return value.to(tl.float32)


@triton.jit
def statistics(
    x, skip, added, K: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr
):  # fmt: skip
    """Return the mean and the reciprocal deviation of `x + skip + added`, [K]."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.range(0, K, BLOCK):
        total += row_of(x, skip, added, k + at, k + at < K)
    mean = tl.sum(total, 0) / K
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.range(0, K, BLOCK):
        mask = k + at < K
        to = row_of(x, skip, added, k + at, mask)
        off = tl.where(mask, to - mean, 0.0)
        total += off * off
    return mean, 1.0 / tl.sqrt(tl.sum(total, 0) / K + EPSILON)


@triton.jit
def gemv_kernel(
    x, skip, added, scale, shift, total, w, v, e0, e1, e2, e3, y,
    N: tl.constexpr, K: tl.constexpr, EPSILON: tl.constexpr, IS_CENTRED: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, IS_PAIR: tl.constexpr,
):  # fmt: skip
    """Write some columns of the result: sums of products in float32.

    Args:
        x: [K].
        skip: [K], added to x before the norm, or None; so is `added`.
        scale: [K], or None: the rows have no norm.
        shift: [K], or None.
        total: [K], gets the sum before the norm, or None.
        w: [N, K].
        v: The second matrix if `IS_PAIR`, else anything.
        e0: A further operand of the epilogue, [N], or None; so are e1, e2 and e3.
        y: [N].
        EPSILON: Of the norm.
        IS_CENTRED: Whether the norm takes the mean off.
        BN: Columns of a block.
        BK: Depth of one step.
        BLOCK: Of the row's statistics.
    """
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    is_column = columns < N
    offset = columns[:, None].to(tl.int64) * K + at[None, :]
    mask = is_column[:, None] & (at < K)[None, :]
    # The matrix is on its way while the launch before ends and the row's statistics are summed.
    next_w = tl.load(w + offset, mask=mask, other=0.0)
    if IS_PAIR:
        next_v = tl.load(v + offset, mask=mask, other=0.0)
    if scale is not None:
        next_scale = tl.load(scale + at, mask=at < K, other=0.0)
    begin()  # noqa: F821  of `launch_plain_kernel`
    if IS_CENTRED:
        mean, rate = statistics(x, skip, added, K, BLOCK, EPSILON)
    squares = tl.zeros((BK,), tl.float32)
    first = tl.zeros((BN, BK), tl.float32)
    second = tl.zeros((BN, BK), tl.float32)
    for k in tl.range(0, K, BK):
        depth = k + at
        is_depth = depth < K
        a = row_of(x, skip, added, depth, is_depth)
        if total is not None:
            is_first = is_depth & (tl.program_id(0) == 0)
            tl.store(total + depth, a.to(total.dtype.element_ty), mask=is_first)
        if scale is not None:
            if IS_CENTRED:
                a = tl.where(is_depth, (a - mean) * rate, 0.0)
            else:
                squares += a * a
            a *= next_scale.to(tl.float32)
            next_scale = tl.load(scale + depth + BK, mask=depth + BK < K, other=0.0)
            if shift is not None:
                a += tl.load(shift + depth, mask=is_depth, other=0.0).to(tl.float32)
        one = next_w
        offset += BK
        mask = is_column[:, None] & (depth + BK < K)[None, :]
        next_w = tl.load(w + offset, mask=mask, other=0.0)
        first += one.to(tl.float32) * a[None, :]
        if IS_PAIR:
            other = next_v
            next_v = tl.load(v + offset, mask=mask, other=0.0)
            second += other.to(tl.float32) * a[None, :]
    one_sum, other_sum = tl.sum(first, 1), tl.sum(second, 1)
    if scale is not None and not IS_CENTRED:
        # A factor of the whole row may come last, so that nothing waits for it.
        deviation = tl.sqrt(tl.sum(squares, 0) / K + EPSILON)
        one_sum /= deviation
        other_sum /= deviation
    r0 = read(e0, columns, is_column)
    r1 = read(e1, columns, is_column)
    r2 = read(e2, columns, is_column)
    r3 = read(e3, columns, is_column)
    if IS_PAIR:
        made = epilogue(one_sum, other_sum, r0, r1, r2, r3)  # noqa: F821
    else:
        made = epilogue(one_sum, r0, r1, r2, r3, 0.0)  # noqa: F821
    tl.store(y + columns, made.to(y.dtype.element_ty), mask=is_column)

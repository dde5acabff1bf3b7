"""A 1x1 convolution and the depthwise one of its result, by bands of rows of some channels.

The sources of `inner` and `outer` are appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def expand_depthwise_kernel(
    x, w, bias, filters, shifts, y, means, between,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    ROWS: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write a band of rows of some channels, and the mean of each of these rows.

    A block writes what it expands to its own part of `between` and reads it after a barrier, so
    that a pixel's neighbours may be in other threads.

    Args:
        x: [N, H, W, C].
        w: [OUT, C].
        bias: [OUT], or None.
        filters: [KH, KW, OUT].
        shifts: [OUT], the depthwise convolution's bias, or None.
        y: [N, OH, OW, OUT].
        means: [N, OH, OUT], or None.
        between: [blocks, ROWS, W, BN].
        ROWS: Rows of x that a band reads.
        BM: At least ROWS * W.
        BR: Rows of the result in a band.
        BW: At least OW.
    """
    pieces: tl.constexpr = (OUT + BN - 1) // BN
    bands: tl.constexpr = (OH + BR - 1) // BR
    piece = tl.program_id(0) % pieces
    line = tl.program_id(0) // pieces
    band = line % bands
    image = line // bands
    rn = piece * BN + tl.arange(0, BN)
    is_column = rn < OUT
    own = between + tl.program_id(0).to(tl.int64) * (ROWS * W * BN)
    top = band * BR * SH - PT
    first = tl.maximum(top, 0)
    rm = tl.arange(0, BM)
    is_row = (rm < ROWS * W) & (first * W + rm < H * W)
    source = x + (image.to(tl.int64) * H + first) * (W * C)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, C, BK):
        rk = k + tl.arange(0, BK)
        is_k = rk < C
        a = tl.load(
            source + rm[:, None] * C + rk[None, :],
            mask=is_row[:, None] & is_k[None, :],
            other=0.0,
        )
        b = tl.load(
            w + rn[None, :] * C + rk[:, None],
            mask=is_column[None, :] & is_k[:, None],
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    if bias is not None:
        acc += tl.load(bias + rn, mask=is_column, other=0.0).to(tl.float32)[None, :]
    wide = inner(acc, 0.0).to(y.dtype.element_ty)  # noqa: F821
    tl.store(own + rm[:, None] * BN + tl.arange(0, BN)[None, :], wide, mask=is_row[:, None])
    tl.debug_barrier()
    at = tl.arange(0, BR * BW)
    row, column = at // BW, at % BW
    is_pixel = (column < OW) & (band * BR + row < OH)
    total = tl.zeros((BR * BW, BN), tl.float32)
    for i in tl.static_range(KH):
        high = top + row * SH + i * DH
        is_high = is_pixel & (high >= 0) & (high < H)
        for j in tl.static_range(KW):
            left = column * SW + (j * DW - PL)
            is_in = is_high & (left >= 0) & (left < W)
            value = tl.load(
                own + ((high - first) * W + left)[:, None] * BN + tl.arange(0, BN)[None, :],
                mask=is_in[:, None],
                other=0.0,
            )
            tap = tl.load(filters + (i * KW + j) * OUT + rn, mask=is_column, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    if shifts is not None:
        total += tl.load(shifts + rn, mask=is_column, other=0.0).to(tl.float32)[None, :]
    result = outer(total, 0.0).to(y.dtype.element_ty)  # noqa: F821
    pixel = (image.to(tl.int64) * OH + band * BR + row) * OW + column
    mask = is_pixel[:, None] & is_column[None, :]
    tl.store(y + pixel[:, None] * OUT + rn[None, :], result, mask=mask)
    if means is not None:
        seen = tl.where(mask, result.to(tl.float32), 0.0)
        sums = tl.sum(tl.reshape(seen, (BR, BW, BN)), 1)
        high = band * BR + tl.arange(0, BR)
        tl.store(
            means + (image.to(tl.int64) * OH + high)[:, None] * OUT + rn[None, :],
            (sums / OW).to(means.dtype.element_ty),
            mask=(high < OH)[:, None] & is_column[None, :],
        )

"""Space-to-depth of NCHW images: a pixel of the result holds all elements under one stride."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def space_to_depth_kernel(
    x, w, around, y, v, moved, scale, middle,
    H, W, C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    ROWS, COLUMNS, TH: tl.constexpr, TW: tl.constexpr, UNITS: tl.constexpr,
    BU: tl.constexpr, BW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write y, the space-to-depth of x by the strides, and the matching filter v.

    A convolution of x with w equals one of y with v, of TH x TW pixels, without strides and pads.

    Args:
        x: [N, C, H, W].
        w: [OUT, KH, KW, C].
        around: One number of x's type, what lies outside of an image; None for 0.
        y: [N, ROWS, COLUMNS, UNITS], of C x SH x SW numbers each and zeros.
        v: [OUT, TH, TW, UNITS].
        moved: int32 [OUT], the sums of filters times `around`; None if nobody needs them.
        scale: float32, the step of the numbers that x is rounded to; None for 1.
        middle: uint8, what stands for 0 among them; None if x is not rounded.
        BU: UNITS or more, a power of two.
        BW: Pixels of a block; BLOCK numbers of v.
    """
    line = tl.program_id(0)
    unit = tl.arange(0, BU)
    column = tl.program_id(1) * BW + tl.arange(0, BW)
    row = line % ROWS * SH - PT + unit // SW % SH
    at = column[:, None] * SW - PL + (unit % SW)[None, :]
    is_in = ((unit < C * SH * SW) & (row >= 0) & (row < H))[None, :] & (at >= 0) & (at < W)
    plane = (line // ROWS).to(tl.int64) * (C * H * W) + (unit // (SH * SW) * H + row) * W
    outside = 0 if around is None else tl.load(around)
    if middle is None:
        value = tl.load(x + plane[None, :] + at, mask=is_in, other=outside)
    else:
        value = tl.load(x + plane[None, :] + at, mask=is_in, other=0.0)
        if scale is not None:
            value = tl.div_rn(value, tl.load(scale))
        zero = tl.load(middle)
        low = 0.0 - zero.to(tl.float32)
        value = tl.minimum(tl.maximum(value, low), 255.0 + low)
        # Beside one and a half times 2^23 there is no room for a fraction.
        whole = (value + 12582912.0).to(tl.int32, bitcast=True) + (zero.to(tl.int32) - 0x4B400000)
        value = tl.where(is_in, whole.to(tl.uint8), outside)
    at = (line.to(tl.int64) * COLUMNS + column)[:, None] * UNITS + unit[None, :]
    tl.store(y + at, value, mask=(column < COLUMNS)[:, None] & (unit < UNITS)[None, :])

    SIZE: tl.constexpr = OUT * TH * TW * UNITS
    here = line * tl.num_programs(1) + tl.program_id(1)
    for start in tl.range(here * BLOCK, SIZE, tl.num_programs(0) * tl.num_programs(1) * BLOCK):
        to = start + tl.arange(0, BLOCK)
        tap, number = to // UNITS, to % UNITS
        below = tap // TW % TH * SH + number // SW % SH
        right = tap % TW * SW + number % SW
        is_tap = (below % DH == 0) & (below // DH < KH) & (right % DW == 0) & (right // DW < KW)
        is_tap = is_tap & (number < C * SH * SW) & (to < SIZE)
        source = (tap // (TH * TW) * KH + below // DH) * KW + right // DW
        given = tl.load(w + source * C + number // (SH * SW), mask=is_tap, other=0)
        tl.store(v + to, given, mask=to < SIZE)
    if moved is not None:
        EACH: tl.constexpr = KH * KW * C
        for row in tl.range(here, OUT, tl.num_programs(0) * tl.num_programs(1)):
            total = tl.zeros((BLOCK,), tl.int32)
            for start in tl.range(0, EACH, BLOCK):
                number = start + tl.arange(0, BLOCK)
                part = tl.load(w + row * EACH + number, mask=number < EACH, other=0)
                total += part.to(tl.int32)
            tl.store(moved + row, tl.sum(total) * outside.to(tl.int32))

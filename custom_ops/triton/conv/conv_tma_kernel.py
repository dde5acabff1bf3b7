"""Convolutions of NHWC tensors as products of matrices, by TMA tiles (sm_90).

The device copies what a step reads, zeros outside of an image, and the tensor cores read it where
it lies. The source of `epilogue` is appended to this text for each region.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def conv_box_kernel(
    x, w, bias, gate, extra, y, parts,
    IMAGES, ROWS, COLUMNS,
    C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Write `epilogue(conv(x * gate, w) + bias, extra)` of a box of pixels and some channels.

    Args:
        x: A map of [IMAGES, H / SH, SH, W / SW, SW * C]: a copy takes neighbours, and those that a
            window with strides reads are neighbours in this.
        w: One of [OUT, KH * KW, C].
        bias: [OUT], or None.
        gate: [N, C], or None.
        extra: A map of [IMAGES, ROWS, COLUMNS, OUT], or None.
        y: One of [IMAGES, ROWS, COLUMNS, OUT].
        parts: float32 [SPLIT, IMAGES, ROWS, COLUMNS, OUT], or None.
        BI: Images of a box, of BH x BW pixels each.
        SPLIT: How many blocks share the depth of a tile; where there are more than one, each
            writes its sum to `parts`, and nothing else.
    """
    ACROSS: tl.constexpr = (OUT + BN - 1) // BN
    first = tl.program_id(0) % ACROSS * BN
    part = tl.program_id(0) // ACROSS
    across = tl.cdiv(COLUMNS, BW)
    left = tl.program_id(1) % across * BW
    top = tl.program_id(1) // across * BH
    image = tl.program_id(2) * BI
    PIECES: tl.constexpr = (C + BK - 1) // BK
    # Rows and columns of the padding, in whole strides.
    UP: tl.constexpr = (PT + SH - 1) // SH
    BACK: tl.constexpr = (PL + SW - 1) // SW
    STEPS: tl.constexpr = KH * KW * PIECES
    EACH: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    start = part * EACH if SPLIT > 1 else 0
    stop = tl.minimum(start + EACH, STEPS) if SPLIT > 1 else STEPS
    acc = tl.zeros((BI * BH * BW, BN), tl.float32)
    for step in tl.range(start, stop):
        tap = step // PIECES
        k = step % PIECES * BK
        row = tap // KW * DH + (UP * SH - PT)
        column = tap % KW * DW + (BACK * SW - PL)
        a = x.load(
            [image, top + row // SH - UP, row % SH, left + column // SW - BACK,
             column % SW * C + k]
        )  # fmt: skip
        if gate is not None:
            at = k + tl.arange(0, BK)
            factor = tl.load(gate + image.to(tl.int64) * C + at, mask=at < C, other=0.0)
            # The product is rounded once, as in `conv_kernel`.
            a = a * factor
        b = w.load([first, tap, k])
        acc = tl.dot(a.reshape(BI * BH * BW, BK), b.reshape(BN, BK).T, acc)
    channel = first + tl.arange(0, BN)
    if SPLIT > 1:
        offset = tl.arange(0, BI * BH * BW)
        of, row, column = image + offset // (BH * BW), top + offset // BW % BH, left + offset % BW
        is_in = (of < IMAGES) & (row < ROWS) & (column < COLUMNS)
        of = (part * IMAGES + of).to(tl.int64)
        tl.store(
            parts + ((of * ROWS + row) * COLUMNS + column)[:, None] * OUT + channel[None, :],
            acc,
            mask=is_in[:, None] & (channel < OUT)[None, :],
        )
    else:
        if bias is not None:
            acc += tl.load(bias + channel, mask=channel < OUT, other=0.0).to(tl.float32)[None, :]
        other = 0.0
        if extra is not None:
            other = extra.load([image, top, left, first])
            other = other.reshape(BI * BH * BW, BN).to(tl.float32)
        result = epilogue(acc, other).to(y.dtype)  # noqa: F821
        y.store([image, top, left, first], result.reshape(BI, BH, BW, BN))

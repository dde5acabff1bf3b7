"""Convolutions of NHWC tensors of bytes as products of matrices, by TMA tiles (sm_90).

The device copies what a step reads, zeros outside of an image. The sources of `unsigned_dot` and
`finish` are appended to this text, `finish` for each region. `operands` stands for the names of
what `finish` reads.
"""

# mypy: ignore-errors
# ruff: noqa: F821
import triton
import triton.language as tl


@triton.jit
def conv_int8_box_kernel(
    x, w, y, operands,
    COLUMNS,
    C: tl.constexpr, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write `finish(conv(x, w))` of a box of pixels and some channels.

    Args:
        x: A map of uint8 [IMAGES, H / SH, SH, W / SW, SW * C], in which a window with strides
            reads neighbours, as a copy does.
        w: One of int8 [OUT, KH * KW, C].
        y: One of [IMAGES, ROWS, COLUMNS, OUT].
        BI: Images of a box, of BH x BW pixels each.
    """
    ACROSS: tl.constexpr = (OUT + BN - 1) // BN
    first = tl.program_id(0) % ACROSS * BN
    across = tl.cdiv(COLUMNS, BW)
    left = tl.program_id(1) % across * BW
    top = tl.program_id(1) // across * BH
    image = tl.program_id(2) * BI
    PIECES: tl.constexpr = (C + BK - 1) // BK
    # Rows and columns of the padding, in whole strides.
    UP: tl.constexpr = (PT + SH - 1) // SH
    BACK: tl.constexpr = (PL + SW - 1) // SW
    acc = tl.zeros((BI * BH * BW, BN), tl.int32)
    for step in tl.range(0, KH * KW * PIECES):
        tap = step // PIECES
        k = step % PIECES * BK
        row = tap // KW * DH + (UP * SH - PT)
        column = tap % KW * DW + (BACK * SW - PL)
        a = x.load(
            [image, top + row // SH - UP, row % SH, left + column // SW - BACK,
             column % SW * C + k]
        )  # fmt: skip
        b = w.load([first, tap, k])
        acc = unsigned_dot(a.reshape(BI * BH * BW, BK), b.reshape(BN, BK).T, acc)
    channel = first + tl.arange(0, BN)
    at = [image, top, left, first]
    result = finish(acc, image, top, left, first, channel, channel < OUT, operands)
    y.store(at, result.to(y.dtype).reshape(BI, BH, BW, BN))

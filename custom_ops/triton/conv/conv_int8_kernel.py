"""Convolutions of NHWC tensors of bytes as products of matrices, gathered as they are read.

The sources of `unsigned_dot` and `finish` are appended to this text, `finish` for each region.
`operands` stands for the names of what `finish` reads.
"""

# mypy: ignore-errors
# ruff: noqa: F821
import triton
import triton.language as tl


@triton.jit
def conv_int8_kernel(
    x, w, zero, moved, y, second, operands,
    pixels,
    H, W, C: tl.constexpr, PITCH: tl.constexpr, OH, OW, OUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PT: tl.constexpr, PL: tl.constexpr,
    IS_POINT: tl.constexpr, IS_FLAT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write `finish(conv(x - zero, w))` of one tile of pixels and channels.

    Args:
        x: uint8 [N, H, W, C]; from a pixel to the next one it is PITCH elements, of which some may
            be those of the next one, too.
        w: int8 [OUT, KH, KW, C].
        zero: uint8, what stands for 0 in x; None for 0.
        moved: int32 [OUT], the sums of `w` times `zero`, of a launch before; or None. With it no
            pixel outside of x is read.
        y: [N, OH, OW, OUT].
        second: float32 of that shape, or None.
        pixels: N * OH * OW.
        IS_POINT: Whether an output pixel reads the one input pixel in its place.
        IS_FLAT: Whether channels are so few that a step has several taps.
    """
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    is_row = rm < pixels
    is_column = rn < OUT
    acc = tl.zeros((BM, BN), tl.int32)
    around = tl.zeros((), tl.uint8)
    sums = tl.zeros((BN,), tl.int32)
    if zero is not None and moved is None:
        around = tl.load(zero)
    DEPTH: tl.constexpr = KH * KW * C
    image = rm // (OH * OW)
    offset = rm % (OH * OW)
    top = offset // OW * SH - PT
    left = offset % OW * SW - PL
    first = image.to(tl.int64) * (H * W)
    PIECES: tl.constexpr = (C + BK - 1) // BK
    STEPS: tl.constexpr = (DEPTH + BK - 1) // BK if IS_FLAT else KH * KW * PIECES
    for step in tl.range(0, STEPS):
        if IS_FLAT:
            k = step * BK + rk
            is_k = k < DEPTH
            at_weight = k
            tap, channel = k // C, k % C
            row = top[:, None] + (tap // KW * DH)[None, :]
            column = left[:, None] + (tap % KW * DW)[None, :]
            is_in = (row >= 0) & (row < H) & (column >= 0) & (column < W) & is_row[:, None]
            at = (first[:, None] + row * W + column) * PITCH + channel[None, :]
            a = tl.load(x + at, mask=is_in & is_k[None, :], other=around)
        else:
            tap = step // PIECES
            k = step % PIECES * BK + rk
            is_k = k < C
            at_weight = tap * C + k
            if IS_POINT:
                a = tl.load(
                    x + rm.to(tl.int64)[:, None] * PITCH + k[None, :],
                    mask=is_row[:, None] & is_k[None, :],
                    other=around,
                )
            else:
                row, column = top + tap // KW * DH, left + tap % KW * DW
                is_in = is_row & (row >= 0) & (row < H) & (column >= 0) & (column < W)
                a = tl.load(
                    x + (first + row * W + column)[:, None] * PITCH + k[None, :],
                    mask=is_in[:, None] & is_k[None, :],
                    other=around,
                )
        b = tl.load(
            w + rn[None, :] * DEPTH + at_weight[:, None],
            mask=is_column[None, :] & is_k[:, None],
            other=0,
        )
        if zero is not None and moved is None:
            sums += tl.sum(b.to(tl.int32), 0)
        acc = unsigned_dot(a, b, acc)
    if moved is not None:
        acc -= tl.load(moved + rn, mask=is_column, other=0)[None, :]
    elif zero is not None:
        acc -= sums[None, :] * around.to(tl.int32)
    at = rm[:, None].to(tl.int64) * OUT + rn[None, :]
    mask = is_row[:, None] & is_column[None, :]
    result = finish(acc, at, mask, rn, is_column, second, operands)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=mask)

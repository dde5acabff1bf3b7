"""What each pixel of a convolution's result is made from, as a row of a matrix."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from ...forms.gemm_bf16 import Patches
from ..tile.emitter import parts
from .bf16_emitter import PAIRS, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


def copy_patches(
    e: Bf16Emitter,
    source: Buffer,
    sink: tuple[Buffer, Expr, int],
    pixels: tuple[Expr, Expr],
    of: Patches,
) -> None:
    """Emit the im2col rows of some pixels, zeros where they lie outside of the image.

    Args:
        e: The emitter that writes the statements.
        source: NHWC, bfloat16 as uint16.
        sink: For [kernel height, kernel width, channels] of each, where it begins, and how many
            elements its rows are apart; zeros come up to a multiple of 32.
        pixels: Of all images' results, the first one and how many.
        of: The geometry.
    """
    buffer, origin, stride = sink
    window, channels = of.window, of.channels
    depth = prod(window.kernel) * channels
    with e.loop(pixels[1]) as index:
        image, y, x = _pixel_offsets(e, pixels[0] + index, of)
        top = e.share(y * e.i64(window.strides[0]) - e.i64(window.pads[0]))
        left = e.share(x * e.i64(window.strides[1]) - e.i64(window.pads[1]))
        to = e.share(origin + index * e.i64(stride))
        with e.loop(e.i64(window.kernel[0])) as down:
            line = e.share(top + down * e.i64(window.dilations[0]))
            begin = e.share((image * e.i64(of.image[0]) + line) * e.i64(of.image[1]))
            row = e.share(to + down * e.i64(window.kernel[1] * channels))
            is_line = _is_within(e, line, of.image[0])
            _copy_line(e, (source, begin), (buffer, row), (left, is_line), of)
        clear_run(e, buffer, e.share(to + e.i64(depth)), -depth % PAIRS)


def _pixel_offsets(e: Bf16Emitter, pixel: Expr, of: Patches) -> tuple[Expr, Expr, Expr]:
    """Return the image, line and column of a pixel of the result."""
    height, width = of.result
    image = e.share(e.divide_down(pixel, height * width))
    rest = e.share(pixel - image * e.i64(height * width))
    line = e.share(e.divide_down(rest, width))
    return image, line, e.share(rest - line * e.i64(width))


def _is_within(e: Bf16Emitter, offset: Expr, size: int) -> Expr:
    return e.both(offset >= e.i64(0), offset < e.i64(size))


def _copy_line(
    e: Bf16Emitter,
    source: tuple[Buffer, Expr],
    sink: tuple[Buffer, Expr],
    offsets: tuple[Expr, Expr],
    of: Patches,
) -> None:
    """Emit the copy of one line of a patch.

    Args:
        e: The emitter that writes the statements.
        source: The image, and the number of the line's first pixel in it.
        sink: And where the line goes.
        offsets: The column that the line begins in, and whether it is one of the image.
        of: The geometry.
    """
    (image, begin), (buffer, to), (left, is_line) = source, sink, offsets
    width, dilation, channels = of.window.kernel[1], of.window.dilations[1], of.channels

    def each() -> None:
        with e.loop(e.i64(width)) as across:
            column = e.share(left + across * e.i64(dilation))
            start = e.share(to + across * e.i64(channels))
            with e.block() as copy:
                copy_run(e, (image, (begin + column) * e.i64(channels)), (buffer, start), channels)
            with e.block() as clear:
                clear_run(e, buffer, start, channels)
            e.branch(e.both(is_line, _is_within(e, column, of.image[1])), copy, clear)

    if dilation != 1:
        each()
        return
    with e.block() as whole:
        copy_run(e, (image, (begin + left) * e.i64(channels)), (buffer, to), width * channels)
    with e.block() as part:
        each()
    last = left + e.i64(width - 1)
    is_inside = e.both(left >= e.i64(0), last < e.i64(of.image[1]))
    e.branch(e.both(is_line, is_inside), whole, part)


def copy_run(
    e: Bf16Emitter, source: tuple[Buffer, Expr], sink: tuple[Buffer, Expr], count: int
) -> None:
    """Emit a copy of `count` elements, which begin at those of `source` and `sink`."""
    start = e.share(source[1])
    _runs(
        e, count, lambda at, n: e.put(sink[0], sink[1] + at, e.part(source[0], start + at, n), n)
    )


def clear_run(e: Bf16Emitter, buffer: Buffer, to: Expr, count: int) -> None:
    """Emit zeros for `count` elements from `to` on."""
    zero = e.constant(0, "uint16")
    _runs(e, count, lambda at, n: e.put(buffer, to + at, _spread(e, zero, n), n))


def _spread(e: Bf16Emitter, value: Expr, count: int) -> Expr:
    return value if count == 1 else e.tir.Broadcast(value, count)


def _runs(e: Bf16Emitter, count: int, run: Callable[[Expr, int], None]) -> None:
    """Emit a run for each vector of `count` elements, and for the powers of two that are left."""
    with e.loop(e.i64(count // PAIRS)) as index:
        run(e.share(index * e.i64(PAIRS)), PAIRS)
    rest, done = count % PAIRS, count // PAIRS * PAIRS
    for half in (0, 16):
        for offset, width in parts(max(0, min(16, rest - half))):
            run(e.i64(done + half + offset), width)

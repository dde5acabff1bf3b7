"""Which pixels of a convolution's results are the rows of a tile of AMX.

Rows of a tile have a constant stride. So a strip is a part of a line of results. Where lines are
short, it has several, with the pixels between them, which are computed and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..gemm.bf16_emitter import TILE
from ..gemm.int8_amx import AmxTiles, Strip
from ..gemm.int8_tiles import Opened

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.gemm_int8 import Filters


@dataclass(frozen=True)
class Strips:
    """How lines of results are cut.

    Args:
        size: Pixels of a line that a strip has.
        each: Strips of a line; 1 where a strip has several lines.
        lines: Lines of a strip.
        between: Rows of a tile from a line to the next.
    """

    size: int
    each: int
    lines: int
    between: int


def strips_of(width: int, between: int | None) -> Strips:
    """Return how lines of `width` results are cut.

    Args:
        width: Pixels of a line.
        between: How many pixels lie from a line's first to the next line's; None if that is no
            whole number.
    """
    if between == width:
        # All pixels follow each other: one line.
        return Strips(TILE, 0, 1, width)
    if between is not None and between + width <= TILE:
        return Strips(width, 1, 1 + (TILE - width) // between, between)
    each = -(-width // TILE)
    return Strips(-(-width // each), each, 1, 0)


def each_strip(
    tiles: AmxTiles,
    of: Filters,
    source: tuple[Buffer, Expr, int],
    results: tuple[Expr, Expr],
    panel: Opened,
) -> None:
    """Emit the results of a block of lines.

    Args:
        tiles: Emits strips.
        of: The geometry.
        source: What pixels are read from, where the first result's begin, and how many numbers lie
            from a line to the next.
        results: The first result, and how many there are: whole lines.
        panel: The columns.
    """
    e, (buffer, origin, pitch), (first, count) = tiles.e, source, results
    columns, width, channels = tiles.of.columns, of.result[1], tiles.of.depth
    down, across = of.window.strides[0] * pitch, of.window.strides[1] * channels
    cut = strips_of(width, down // across if down % across == 0 else None)

    def sinks(start: Expr, index: Expr) -> Expr:
        return e.share((first + start + index) * e.i64(columns) + panel.column)

    def pixels(number: Expr) -> Strip:
        start = e.share(number * e.i64(TILE))
        left = e.share(e.minimum(count - start, e.i64(TILE)))
        top = e.share(origin + start * e.i64(across))
        return Strip(top, left, lambda index: (sinks(start, index), None))

    def part(number: Expr) -> Strip:
        line = e.share(e.divide_down(number, cut.each))
        within = (number - line * e.i64(cut.each)) * e.i64(cut.size)
        # The last one may lie across the one before it: all strips have the same size.
        column = e.share(e.minimum(within, e.i64(width - cut.size)))
        start = e.share(line * e.i64(width) + column)
        top = e.share(origin + line * e.i64(down) + column * e.i64(across))
        return Strip(top, e.i64(cut.size), lambda index: (sinks(start, index), None))

    def lines(number: Expr) -> Strip:
        line = e.share(number * e.i64(cut.lines))
        left = e.share(e.minimum(e.divide_down(count, width) - line, e.i64(cut.lines)))
        rows = e.share((left - e.i64(1)) * e.i64(cut.between) + e.i64(width))

        def sink(index: Expr) -> tuple[Expr, Expr | None]:
            of_strip = e.share(e.divide_down(index, cut.between))
            column = e.share(index - of_strip * e.i64(cut.between))
            start = e.share((line + of_strip) * e.i64(width))
            return sinks(start, column), column < e.i64(width)

        return Strip(e.share(origin + line * e.i64(down)), rows, sink)

    if not cut.each:
        strips = e.divide_up(count, TILE), pixels
    elif cut.lines > 1:
        strips = e.divide_up(e.share(e.divide_down(count, width)), cut.lines), lines
    else:
        strips = e.share(e.divide_down(count, width) * e.i64(cut.each)), part
    tiles.each_strip(buffer, e.i64(across), strips, panel)

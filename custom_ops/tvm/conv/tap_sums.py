"""Convolutions of NHWC images of unknown sizes: sums over taps, each of the pixels that it meets.

For each tap the pixels of a run are listed whose tap is inside of the image. Their products with
the filters of that tap are added to the run's sums. Nothing is copied, and nothing outside of an
image is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ..tile.emitter import TileEmitter, parts
from ..tile.gemm_tile import each_register, multiply_add, write_vector
from ..tile.program import ConvKernel, Panel, lanes_of, open_panel
from ..tile.registers import VECTOR, Tile, TileRows, tile_rows
from .algorithm import Algorithm
from .winograd_run import Images

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Pixels of a run, at most: their sums and the channels of a block of them stay in the first level
#: of cache.
PIXELS_OF_RUN = 64
# Runs that there should be for threads, and pixels that are worth reading the filters for.
_RUNS, _PIXELS = 4, 16
# Channels that are multiplied before the next tile: filters of a panel are 32 KB then.
_DEPTH = 128


@dataclass(frozen=True)
class TapSums:
    """Runs of neighbouring pixels by one panel of channels.

    Args:
        of: The convolution. Its weight is float32 [V, taps, C, 16], V vectors of output channels.
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        whole: Vectors of channels of a whole panel.
        panel: Of this one, and the lanes of its last vector.
        sides: Height and width of an input image.
        made: Height and width of a result.
    """

    of: ConvKernel
    e: TileEmitter
    buffers: Sequence[Buffer]
    whole: int
    panel: tuple[int, int]
    sides: tuple[Expr, Expr]
    made: tuple[Expr, Expr]

    @property
    def vectors(self) -> int:
        """Vectors of channels of the panel."""
        return self.panel[0]

    @property
    def columns(self) -> int:
        """Channels of the panel."""
        return self.vectors * VECTOR

    @property
    def rows(self) -> TileRows:
        """Pixels of a tile."""
        return tile_rows(self.vectors, self.e.processor)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Float32 numbers of arrays: none, none, and sums of a run and of a pixel to discard."""
        return 0, 0, (PIXELS_OF_RUN + 1) * self.columns

    def emit(
        self, scratch: Sequence[tuple[Buffer, Expr]], panel: Expr, start: Expr, count: Expr
    ) -> None:
        """Compute `count` pixels of all images from `start` on.

        Args:
            scratch: Arrays of `sizes`, and where their first element is.
            panel: Of channels.
            start: The first pixel.
            count: At most the pixels of a run; at least one.
        """
        e, conv = self.e, self.of.conv
        taps, sums = conv.window.taps, scratch[2]
        left = e.share(panel * e.i64(self.whole * VECTOR))
        made = open_panel(e, self.buffers, conv, left, self.panel)
        with e.loop(count + e.i64(1)) as pixel:
            self._begin(sums, made, pixel)
        lists = self._lists(start, count)
        with e.loop(e.i64(taps)) as tap, e.loop(e.divide_up(e.i64(conv.depth), _DEPTH)) as block:
            channel = e.share(block * e.i64(_DEPTH))
            self._products(sums, lists, (left, tap, channel))
        with e.loop(count) as pixel:
            self._finish(sums, made, start, pixel)

    def _begin(self, sums: tuple[Buffer, Expr], panel: Panel, pixel: Expr) -> None:
        """Let the sums of one pixel be the bias."""
        e, (into, first) = self.e, sums
        sink = e.share(first + pixel * e.i64(self.columns))
        with e.each_vector(e.i64(self.vectors)) as (at, lane):
            e.store(into, panel.bias[at + lane], sink + at + lane)

    def _lists(self, start: Expr, count: Expr) -> _Lists:
        """List for each tap the pixels of a run that it meets inside of the image."""
        e, conv = self.e, self.of.conv
        window, taps = conv.window, conv.window.taps
        pitch = PIXELS_OF_RUN + self.rows.tall
        lists = _Lists(
            e.local(taps, "int64"), e.local(taps * pitch, "int64"), e.local(taps * pitch, "int64"),
            pitch,
        )  # fmt: skip
        (height, width), (tall, wide) = self.sides, self.made
        with e.loop(e.i64(taps)) as tap:
            e.store(lists.counts, e.i64(0), tap)
        with e.loop(count) as pixel:
            number = e.share(start + pixel)
            line = e.share(e.divide_down(number, wide))
            image = e.share(e.divide_down(line, tall))
            top = (line - image * tall) * e.i64(window.strides[0]) - e.i64(window.pads[0])
            left = (number - line * wide) * e.i64(window.strides[1]) - e.i64(window.pads[1])
            top, left = e.share(top), e.share(left)
            sink = e.share(pixel * e.i64(self.columns))
            with e.loop(e.i64(window.kernel[0])) as i:
                y = e.share(top + i * e.i64(window.dilations[0]))
                is_row = e.share(e.both(y >= e.i64(0), y < height))
                row = e.share((image * height + y) * width)
                with e.loop(e.i64(window.kernel[1])) as j:
                    z = e.share(left + j * e.i64(window.dilations[1]))
                    inside = e.both(is_row, e.both(z >= e.i64(0), z < width))
                    tap = e.share(i * e.i64(window.kernel[1]) + j)
                    length = e.share(lists.counts[tap])
                    at = e.share(tap * e.i64(pitch) + length)
                    e.store(lists.sources, (row + z) * e.i64(conv.depth), at)
                    e.store(lists.sinks, sink, at)
                    grown = e.share(length + e.select(inside, e.i64(1), e.i64(0)))
                    e.store(lists.counts, grown, tap)
        with e.loop(e.i64(taps)) as tap:
            length = e.share(lists.counts[tap])
            with e.loop(e.i64(self.rows.low)) as row:  # of the last tile: thrown away
                at = e.share(tap * e.i64(pitch) + length + row)
                e.store(lists.sources, e.i64(0), at)
                e.store(lists.sinks, count * e.i64(self.columns), at)
        return lists

    def _products(
        self,
        sums: tuple[Buffer, Expr],
        lists: _Lists,
        at: tuple[Expr, Expr, Expr],
    ) -> None:
        """Add a block of channels of one tap to the sums of its pixels.

        Args:
            sums: Float32 [pixel, column], and where they begin.
            lists: The pixels.
            at: The panel's first channel, the tap, and the block's first channel.
        """
        e, rows = self.e, self.rows
        length = e.share(lists.counts[at[1]])
        tall = e.share(e.divide_down(length, rows.tall))
        done = e.share(tall * e.i64(rows.tall))
        begin = e.share(at[1] * e.i64(lists.pitch))
        low = e.divide_up(length - done, rows.low)
        for first, number, height in ((begin, tall, rows.tall), (begin + done, low, rows.low)):
            start = e.share(first)
            with e.loop(number) as each:
                pixel = e.share(start + each * e.i64(height))
                for left in range(0, self.vectors, rows.vectors):
                    tile = Tile(height, min(rows.vectors, self.vectors - left))
                    self._product(sums, lists, (pixel, left, tile), at)

    def _product(
        self,
        sums: tuple[Buffer, Expr],
        lists: _Lists,
        part: tuple[Expr, int, Tile],
        at: tuple[Expr, Expr, Expr],
    ) -> None:
        """Add to one tile of sums: its first pixel of the lists, its first vector, its size."""
        e, (pixel, left, tile), (column, tap, channel) = self.e, part, at
        conv, x, weight = self.of.conv, self.buffers[self.of.conv.x], self.buffers[self.of.weight]
        into, first = sums
        registers = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
        sinks = [
            e.share(first + lists.sinks[pixel + e.i64(row)] + e.i64(left * VECTOR))
            for row in range(tile.rows)
        ]
        sources = [
            e.share(lists.sources[pixel + e.i64(row)] + channel) for row in range(tile.rows)
        ]
        for row, vector, register, lane in each_register(e, registers):
            e.store(register, into[sinks[row] + e.i64(vector * VECTOR) + lane], lane)
        panel = e.share(column + e.i64(left * VECTOR))
        step = e.share(tap * e.i64(conv.depth) + channel)
        steps = conv.depth * conv.window.taps
        depth = e.minimum(e.i64(_DEPTH), e.i64(conv.depth) - channel)
        with e.loop(e.i64(_DEPTH) if conv.depth % _DEPTH == 0 else depth) as c:
            right = lanes_of(e, weight, panel, steps, step + c)

            def factor(row: int, c: Expr = c) -> Expr:
                return x[sources[row] + c]

            multiply_add(e, registers, factor, right)
        for row, vector, register, lane in each_register(e, registers):
            e.store(into, register[lane], sinks[row] + e.i64(vector * VECTOR) + lane)

    def _finish(self, sums: tuple[Buffer, Expr], panel: Panel, start: Expr, pixel: Expr) -> None:
        """Apply the epilogue to one pixel's sums and write the results."""
        e, to, (values, first) = self.e, panel.to, sums
        source = e.share(first + pixel * e.i64(self.columns))
        sink = e.share((start + pixel) * e.i64(to.channels) + to.first)
        epilogue = self.of.conv.epilogue
        whole = self.vectors if to.lanes == VECTOR else self.vectors - 1
        with e.loop(e.i64(whole)) as vector:
            at = e.share(vector * e.i64(VECTOR))
            write_vector(e, values, epilogue, to, (source + at, sink + at), VECTOR)
        for offset, width in parts(to.lanes) if whole < self.vectors else ():
            at = e.i64(whole * VECTOR + offset)
            write_vector(e, values, epilogue, to, (source + at, sink + at), width)


@dataclass(frozen=True)
class _Lists:
    """Pixels of a run by tap.

    Args:
        counts: Int64 [taps]: how many pixels a tap has.
        sources: Int64 [taps, pitch]: the first element of each pixel in the images.
        sinks: Int64 [taps, pitch]: the first sum of each.
        pitch: Elements of a list.
    """

    counts: Buffer
    sources: Buffer
    sinks: Buffer
    pitch: int


def by_taps(
    of: ConvKernel,
    e: TileEmitter,
    buffers: Sequence[Buffer],
    panels: Sequence[tuple[int, int]],
    picoseconds: int,
) -> Algorithm:
    """Return the sums over taps of all images, computing what is known at run time.

    Args:
        of: The convolution.
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        panels: Vectors and lanes of whole panels, and of the last one if it has fewer.
        picoseconds: Of a tap of a pixel, for each pair of channels.
    """
    conv, whole = of.conv, panels[0][0]
    images = Images.of(conv, e, 1)
    runs = [TapSums(of, e, buffers, whole, each, images.given, images.made) for each in panels]
    batch = e.share(e.extent(conv.output.shape[0]))
    total = e.share(batch * images.tiles)
    # Of three taps two leave the image at an end of a column or row of pixels.
    inside = [
        e.i64(taps) * side - e.i64(taps - 1)
        for taps, side in zip(conv.window.kernel, images.made, strict=True)
    ]
    least = min(_RUNS, ceil(_RUNS * whole * VECTOR / conv.channels))
    wanted = e.minimum(e.i64(least), e.divide_down(total, _PIXELS))
    count = e.share(e.tir.max(e.tir.max(e.divide_up(total, PIXELS_OF_RUN), wanted), e.i64(1)))
    most = e.share(e.tir.max(e.divide_down(total + count - e.i64(1), count), e.i64(1)))
    number = e.share(e.divide_down(total + most - e.i64(1), most))
    cost = e.share(batch * inside[0] * inside[1] * e.i64(picoseconds))
    return Algorithm(runs, total, number, most, cost)

"""3x3 convolutions of few pixels of NHWC images: sums over the taps of each pixel.

Each pixel's window is copied, and rows of pixels are multiplied by filters as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ..tile.emitter import TileEmitter
from ..tile.gemm_tile import each_register, multiply_add, write_vector
from ..tile.program import ConvKernel, Panel, lanes_of, open_panel
from ..tile.registers import VECTOR, Tile, even_tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

_SIDE, _TAPS = 3, 9
# Float32 numbers of a pixel's window of a vector of channels.
_PITCH = _TAPS * VECTOR
# Pixels of a row of tiles, if there are registers for them.
_ROWS = 8
#: Pixels of a run, at most.
PIXELS_OF_RUN = 16


@dataclass(frozen=True)
class FewPixels:
    """Runs of neighbouring pixels by one panel of channels.

    Args:
        of: The convolution. Its weight is float32 [V, 9 C, 16], V vectors of output channels.
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        panel: Vectors of channels of a whole panel, and of this one.
        sides: Height and width of an input image.
        made: Height and width of a result.
    """

    of: ConvKernel
    e: TileEmitter
    buffers: Sequence[Buffer]
    panel: tuple[int, int]
    sides: tuple[Expr, Expr]
    made: tuple[Expr, Expr]

    @property
    def vectors(self) -> int:
        """Vectors of channels of the panel."""
        return self.panel[1]

    @property
    def columns(self) -> int:
        """Channels of the panel."""
        return self.vectors * VECTOR

    @property
    def tile(self) -> Tile:
        """Pixels by vectors of channels in registers."""
        return even_tile(_ROWS, self.vectors, self.e.processor)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Float32 numbers of arrays: none, a run's windows, and its sums."""
        rows = ceil(PIXELS_OF_RUN / self.tile.rows) * self.tile.rows
        return 0, rows * _PITCH, rows * self.columns

    def padded(self, count: Expr) -> Expr:
        """Return how many pixels are computed for `count`, in whole rows of tiles."""
        return self.e.divide_up(count, self.tile.rows) * self.e.i64(self.tile.rows)

    def emit(
        self, scratch: Sequence[tuple[Buffer, Expr]], panel: Expr, start: Expr, count: Expr
    ) -> None:
        """Compute `count` pixels of all images from `start` on.

        Args:
            scratch: Arrays of `sizes`, and where their first element is.
            panel: Of channels.
            start: The first pixel.
            count: At most the pixels of a run.
        """
        e, conv = self.e, self.of.conv
        x, (_, windows, sums) = self.buffers[conv.x], scratch
        left = e.share(panel * e.i64(self.panel[0] * VECTOR))
        made = open_panel(e, self.buffers, conv, left, (self.vectors, VECTOR))
        (top, _), pads = self.made, conv.window.pads
        low = e.share(e.tir.max(e.i64(pads[0] + 1) - top, e.i64(0)))
        high = e.share(e.minimum(self.sides[0] + e.i64(pads[0]), e.i64(_SIDE)))
        sources = self._sources(start, count, (low, high))
        groups = e.share(e.divide_up(count, self.tile.rows))
        with e.loop(e.i64(conv.depth // VECTOR)) as number:
            channel = e.share(number * e.i64(VECTOR))
            with e.loop(count) as pixel, e.loop((high - low) * e.i64(_SIDE)) as tap:
                self._copy(x, windows, sources, (pixel, low * e.i64(_SIDE) + tap), channel)
            with e.loop(groups * e.i64(self.tile.rows) - count) as pixel:
                self._clear(windows, count + pixel)
            is_first = e.share(e.equal(number, e.i64(0)))
            self._products((windows, sums), groups, (left, channel), (low, high), is_first)
        with e.loop(count) as pixel:
            self._finish(sums, made, start, pixel)

    def _sources(self, start: Expr, count: Expr, rows: tuple[Expr, Expr]) -> Buffer:
        """Return where each tap of each pixel of a run reads: [pixel, tap], -1 outside."""
        e, (height, width), (tall, wide) = self.e, self.sides, self.made
        result = e.local(PIXELS_OF_RUN * _TAPS, "int64")
        pads = self.of.conv.window.pads
        with e.loop(count) as pixel:
            line = e.share(e.divide_down(start + pixel, wide))
            image = e.share(e.divide_down(line, tall))
            top = e.share(line - image * tall - e.i64(pads[0]))
            left = e.share(start + pixel - line * wide - e.i64(pads[1]))
            with e.loop(rows[1] - rows[0]) as number:
                i = e.share(rows[0] + number)
                y = e.share(top + i)
                is_row = e.share(e.both(y >= e.i64(0), y < height))
                row = e.share((image * height + y) * width)
                for j in range(_SIDE):
                    z = e.share(left + e.i64(j))
                    inside = e.both(is_row, e.both(z >= e.i64(0), z < width))
                    at = e.select(inside, (row + z) * e.i64(self.of.conv.depth), e.i64(-1))
                    e.store(result, at, pixel * e.i64(_TAPS) + i * e.i64(_SIDE) + e.i64(j))
        return result

    def _copy(
        self,
        x: Buffer,
        windows: tuple[Buffer, Expr],
        sources: Buffer,
        taps: tuple[Expr, Expr],
        channel: Expr,
    ) -> None:
        """Copy a block of channels of one tap of one pixel, zeros if it is outside the image.

        Args:
            x: The images.
            windows: Float32 [pixel, tap, channel], and where it begins.
            sources: Where each tap of each pixel is.
            taps: The pixel, and its tap.
            channel: The block's first channel.
        """
        e, (into, first), (pixel, tap) = self.e, windows, taps
        number = e.share(pixel * e.i64(_TAPS) + tap)
        source = e.share(sources[number])
        inside = e.share(source >= e.i64(0))
        at = e.share(e.tir.max(source, e.i64(0)) + channel)
        to = e.share(first + number * e.i64(VECTOR))
        with e.vector(VECTOR) as lane:
            e.store(into, e.select(inside, x[at + lane], e.f32(0.0)), to + lane)

    def _clear(self, windows: tuple[Buffer, Expr], pixel: Expr) -> None:
        """Zero the window of a row without a pixel: denormal numbers there would cost time."""
        e, (into, first) = self.e, windows
        sink = e.share(first + pixel * e.i64(_PITCH))
        with e.each_vector(e.i64(_TAPS), sink) as (at, lane):
            e.store(into, e.f32(0.0), at + lane)

    def _products(
        self,
        scratch: Sequence[tuple[Buffer, Expr]],
        groups: Expr,
        at: tuple[Expr, Expr],
        lines: tuple[Expr, Expr],
        is_first: Expr,
    ) -> None:
        """Add a block of channels to a run's sums, or begin them.

        Args:
            scratch: Windows and sums.
            groups: Rows of tiles.
            at: The panel's first channel, and the block's.
            lines: The first row of taps that is inside of the image, and the one after the last.
            is_first: Whether nothing was summed up before.
        """
        e = self.e
        for left in range(0, self.vectors, self.tile.vectors):
            vectors = min(self.tile.vectors, self.vectors - left)
            with e.loop(groups) as group:
                row = e.share(group * e.i64(self.tile.rows))
                self._product(scratch, (row, left, vectors), at, lines, is_first)

    def _product(
        self,
        scratch: Sequence[tuple[Buffer, Expr]],
        tile: tuple[Expr, int, int],
        at: tuple[Expr, Expr],
        lines: tuple[Expr, Expr],
        is_first: Expr,
    ) -> None:
        """Add to one tile of sums: its first row, its first vector of the panel, its vectors."""
        e, (row, first_vector, vectors) = self.e, tile
        (windows, first), (sums, first_sum) = scratch
        registers = [[e.scratch() for _ in range(vectors)] for _ in range(self.tile.rows)]
        corner = e.share(first_sum + row * e.i64(self.columns) + e.i64(first_vector * VECTOR))

        def sum_at(number: int, vector: int, lane: Expr) -> Expr:
            return corner + e.i64(number * self.columns + vector * VECTOR) + lane

        for number, vector, register, lane in each_register(e, registers):
            value = e.select(is_first, e.f32(0.0), sums[sum_at(number, vector, lane)])
            e.store(register, value, lane)
        source = e.share(first + row * e.i64(_PITCH))
        column, channel = e.share(at[0] + e.i64(first_vector * VECTOR)), at[1]
        taps = (lines[1] - lines[0]) * e.i64(_SIDE)
        with e.loop(e.i64(VECTOR)) as c, e.loop(taps) as number:
            tap = e.share(lines[0] * e.i64(_SIDE) + number)
            offset = e.share(source + tap * e.i64(VECTOR) + c)
            step = (channel + c) * e.i64(_TAPS) + tap
            right = lanes_of(
                e, self.buffers[self.of.weight], column, self.of.conv.depth * _TAPS, step
            )

            def factor(row: int, offset: Expr = offset) -> Expr:
                return windows[offset + e.i64(row * _PITCH)]

            multiply_add(e, registers, factor, right)
        for number, vector, register, lane in each_register(e, registers):
            e.store(sums, register[lane], sum_at(number, vector, lane))

    def _finish(self, sums: tuple[Buffer, Expr], panel: Panel, start: Expr, pixel: Expr) -> None:
        """Add the bias to one pixel's sums, apply the epilogue and write the results."""
        e, to, (values, first) = self.e, panel.to, sums
        result = e.scratch()
        source = e.share(first + pixel * e.i64(self.columns))
        sink = e.share((start + pixel) * e.i64(to.channels) + to.first)
        with e.loop(e.i64(self.vectors)) as vector:
            at = e.share(vector * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                e.store(result, values[source + at + lane] + panel.bias[at + lane], lane)
            write_vector(e, result, self.of.conv.epilogue, to, (e.i64(0), sink + at), VECTOR)

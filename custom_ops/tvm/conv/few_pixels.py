"""3x3 convolutions of few pixels, of NHWC tensors with sizes that are known only at run time.

Winograd's filtering takes all filters to the points first. That takes longer than the plain
products of a hundred pixels. Here each pixel's window is copied, and rows of pixels are multiplied
by the filters as they lie in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ..tile.emitter import TileEmitter
from ..tile.gemm_tile import each_register, multiply_add, write_vector
from ..tile.program import Panel, lanes_of
from ..tile.registers import VECTOR, Tile, even_tile

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.conv import Convolution

_SIDE, _TAPS = 3, 9
# Pixels of a unit's run, and of a row of tiles if there are registers for them.
RUN, _ROWS = 16, 8


@dataclass(frozen=True)
class FewPixels:
    """Runs of neighbouring pixels by one panel of channels.

    Args:
        conv: The convolution, 3x3 with stride 1.
        weight: Float32 [V, 9 C, 16], V vectors of output channels.
        vectors: Of the panel.
        block: Input channels that are summed up at once.
        sides: Height and width of an input image.
        made: Height and width of a result.
        e: The emitter that writes the statements.
    """

    conv: Convolution
    weight: Buffer
    vectors: int
    block: int
    sides: tuple[Expr, Expr]
    made: tuple[Expr, Expr]
    e: TileEmitter

    @property
    def columns(self) -> int:
        """Channels of the panel."""
        return self.vectors * VECTOR

    @property
    def tile(self) -> Tile:
        """Pixels by vectors of channels in registers."""
        return even_tile(_ROWS, self.vectors, self.e.processor)

    @property
    def sizes(self) -> tuple[int, int]:
        """Float32 numbers that a run's windows take, and its sums."""
        rows = ceil(RUN / self.tile.rows) * self.tile.rows
        return rows * self._pitch, rows * self.columns

    @property
    def _pitch(self) -> int:
        """Float32 numbers from a pixel's window to the next one."""
        return _TAPS * self.block

    def emit(
        self,
        x: Buffer,
        scratch: Sequence[tuple[Buffer, Expr]],
        panel: Panel,
        run: tuple[Expr, Expr],
    ) -> None:
        """Compute the results of one run.

        Args:
            x: The images, float32 [N, H, W, C].
            scratch: Two arrays of `sizes`, and where the first element of each is.
            panel: Where results go.
            run: The run's first pixel, of all images, and how many pixels it has.
        """
        e, (start, count) = self.e, run
        windows, sums = scratch
        (top, _), pads = self.made, self.conv.window.pads
        low = e.share(e.tir.max(e.i64(pads[0] + 1) - top, e.i64(0)))
        high = e.share(e.minimum(self.sides[0] + e.i64(pads[0]), e.i64(_SIDE)))
        sources = self._sources(start, count, (low, high))
        groups = e.share(e.divide_up(count, self.tile.rows))
        with e.loop(e.i64(self.conv.depth // self.block)) as number:
            channel = e.share(number * e.i64(self.block))
            with e.loop(count) as pixel, e.loop((high - low) * e.i64(_SIDE)) as tap:
                self._copy(x, windows, sources, (pixel, low * e.i64(_SIDE) + tap), channel)
            with e.loop(groups * e.i64(self.tile.rows) - count) as pixel:
                self._clear(windows, count + pixel)
            taps = low, high
            made: list[list[Expr]] = []
            for begin in (True, False):
                with e.block() as block:
                    self._products(scratch, groups, (panel.to.first, channel), taps, begin=begin)
                made.append(block)
            e.branch(e.equal(number, e.i64(0)), *made)
        with e.loop(count) as pixel:
            self._finish(sums, panel, start, pixel)

    def _sources(self, start: Expr, count: Expr, rows: tuple[Expr, Expr]) -> Buffer:
        """Return where each tap of each pixel of a run reads: [pixel, tap], -1 outside."""
        e, (height, width), (tall, wide) = self.e, self.sides, self.made
        result = e.local(RUN * _TAPS, "int64")
        pads = self.conv.window.pads
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
                    at = e.select(inside, (row + z) * e.i64(self.conv.depth), e.i64(-1))
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
        to = e.share(first + number * e.i64(self.block))
        for part in range(0, self.block, VECTOR):
            with e.vector(VECTOR) as lane:
                value = e.select(inside, x[at + e.i64(part) + lane], e.f32(0.0))
                e.store(into, value, to + e.i64(part) + lane)

    def _clear(self, windows: tuple[Buffer, Expr], pixel: Expr) -> None:
        """Zero the window of a row without a pixel: denormal numbers there would cost time."""
        e, (into, first) = self.e, windows
        sink = e.share(first + pixel * e.i64(self._pitch))
        with e.each_vector(e.i64(self._pitch // VECTOR), sink) as (at, lane):
            e.store(into, e.f32(0.0), at + lane)

    def _products(
        self,
        scratch: Sequence[tuple[Buffer, Expr]],
        groups: Expr,
        at: tuple[Expr, Expr],
        taps: tuple[Expr, Expr],
        *,
        begin: bool,
    ) -> None:
        """Add a block of channels to a run's sums, or begin them.

        Args:
            scratch: Windows and sums.
            groups: Rows of tiles.
            at: The panel's first channel, and the block's.
            taps: The first one that is inside of the image, and the one after the last.
            begin: Whether nothing was summed up before.
        """
        e = self.e
        for left in range(0, self.vectors, self.tile.vectors):
            vectors = min(self.tile.vectors, self.vectors - left)
            with e.loop(groups) as group:
                row = e.share(group * e.i64(self.tile.rows))
                self._product(scratch, (row, left, vectors), at, taps, begin=begin)

    def _product(
        self,
        scratch: Sequence[tuple[Buffer, Expr]],
        tile: tuple[Expr, int, int],
        at: tuple[Expr, Expr],
        taps: tuple[Expr, Expr],
        *,
        begin: bool,
    ) -> None:
        """Add to one tile of sums: its first row, its first vector of the panel, its vectors."""
        e, (row, first_vector, vectors) = self.e, tile
        (windows, first), (sums, first_sum) = scratch
        registers = [[e.scratch() for _ in range(vectors)] for _ in range(self.tile.rows)]
        corner = e.share(first_sum + row * e.i64(self.columns) + e.i64(first_vector * VECTOR))

        def sum_at(number: int, vector: int, lane: Expr) -> Expr:
            return corner + e.i64(number * self.columns + vector * VECTOR) + lane

        for number, vector, register, lane in each_register(e, registers):
            value = e.f32(0.0) if begin else sums[sum_at(number, vector, lane)]
            e.store(register, value, lane)
        source = e.share(first + row * e.i64(self._pitch))
        column, channel = e.share(at[0] + e.i64(first_vector * VECTOR)), at[1]
        with e.loop(e.i64(self.block)) as c, e.loop(taps[1] - taps[0]) as number:
            line = e.share((taps[0] + number) * e.i64(_SIDE))
            offset = e.share(source + line * e.i64(self.block) + c)
            step = e.share((channel + c) * e.i64(_TAPS) + line)
            for j in range(_SIDE):

                def left(r: int, j: int = j) -> Expr:
                    return windows[offset + e.i64(r * self._pitch + j * self.block)]

                steps = self.conv.depth * _TAPS
                right = lanes_of(e, self.weight, column, steps, step + e.i64(j))
                multiply_add(e, registers, left, right)
        for number, vector, register, lane in each_register(e, registers):
            e.store(sums, register[lane], sum_at(number, vector, lane))

    def _finish(
        self, sums: tuple[Buffer, Expr], panel: Panel, start: Expr, pixel: Expr
    ) -> None:
        """Add the bias to one pixel's sums, apply the epilogue and write the results."""
        e, to, (values, first) = self.e, panel.to, sums
        result = e.scratch()
        source = e.share(first + pixel * e.i64(self.columns))
        sink = e.share((start + pixel) * e.i64(to.channels) + to.first)
        with e.loop(e.i64(self.vectors)) as vector:
            at = e.share(vector * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                e.store(result, values[source + at + lane] + panel.bias[at + lane], lane)
            write_vector(e, result, self.conv.epilogue, to, (e.i64(0), sink + at), VECTOR)

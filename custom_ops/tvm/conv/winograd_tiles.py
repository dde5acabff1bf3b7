"""One run of tiles of a convolution by Winograd's minimal filtering: see `winograd`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from ..tile.gemm_tile import multiply_add, write_vector
from ..tile.program import Panel, open_panel
from ..tile.registers import VECTOR, Tile, even_tile
from .winograd_plan import WinogradPlan
from .winograd_transforms import POINTS, SIDE, STEP, filtered, gathered, input_transform

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Channels whose products are summed up at once: filters, pixels and sums are 1.1 MB together then,
# on the stack of whichever thread runs.
_DEPTH = 32
# Channels that weights are asked for ahead.
_AHEAD = 8


class Run:
    """A run of tiles of one panel of `vectors` vectors: a part of its channels after another."""

    def __init__(
        self, of: WinogradPlan, e: TileEmitter, buffers: list[Buffer], level: str, vectors: int
    ) -> None:
        self.of = of
        self.e = e
        self.buffers = buffers
        self.vectors = vectors
        self.columns = vectors * VECTOR
        self.block = next(n for n in (_DEPTH, VECTOR) if of.conv.depth % n == 0)
        count = of.tiles[0] * of.tiles[1]
        self.tile = even_tile(min(count, of.run), vectors, level)
        self.room = ceil(of.run / self.tile.rows) * self.tile.rows
        # Points of filters [point, channel, column], of pixels [point, vector of channels, tile,
        # channel], and sums [point, tile, column]. From a point to the next one it is no power of
        # two, or all points of a place would go into one set of the first level of cache.
        self.pitch_u = self.block * self.columns + VECTOR
        self.pitch_v = self.block * self.room + VECTOR
        self.pitch_m = self.room * self.columns + VECTOR

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers that the points of filters, of pixels, and of sums take."""
        return POINTS * self.pitch_u, POINTS * self.pitch_v, POINTS * self.pitch_m

    def emit(
        self, scratch: Sequence[tuple[Buffer, Expr]], panel: Expr, start: Expr, count: Expr
    ) -> None:
        """Compute `count` tiles of all images from `start` on.

        Args:
            scratch: Arrays of `sizes`, and where their first element is.
            panel: Of channels.
            start: The first tile.
            count: At most the tiles of a run.
        """
        e, of = self.e, self.of
        (self.u, self.u_start), (self.v, self.v_start), (self.m, self.m_start) = scratch
        first = e.share(panel * e.i64(of.vectors))
        rows = e.share(e.divide_up(count, self.tile.rows))
        with e.loop(e.i64(of.conv.depth // self.block)) as number:
            channel = e.share(number * e.i64(self.block))
            self._weights(first, channel)
            with e.loop(count) as tile:
                self._input(start + tile, tile, channel)
            with e.loop(rows * e.i64(self.tile.rows) - count) as tile:
                self._nothing(count + tile)
            with e.block() as begun:
                self._products(rows, begin=True)
            with e.block() as more:
                self._products(rows, begin=False)
            e.branch(e.equal(number, e.i64(0)), begun, more)
        left = e.share(first * e.i64(VECTOR))
        made = open_panel(e, self.buffers, of.conv, left, (self.vectors, VECTOR))
        with e.loop(count) as tile:
            self._output(start + tile, tile, made)

    def _place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a tile, and its row and column there."""
        e, (rows, columns) = self.e, self.of.tiles
        image = e.share(e.divide_down(number, rows * columns))
        inside = e.share(number - image * e.i64(rows * columns))
        row = e.share(e.divide_down(inside, columns))
        return image, row, e.share(inside - row * e.i64(columns))

    def _weights(self, first: Expr, channel: Expr) -> None:
        """Take the filters of a block of channels to the points."""
        e, of = self.e, self.of
        weight = self.buffers[of.weight]
        with e.loop(e.i64(self.block)) as c, e.loop(e.i64(self.vectors)) as vector:
            at = (first + vector) * e.i64(of.conv.depth) + channel + c
            source = e.share(at * e.i64(9 * VECTOR))
            sink = e.share(c * e.i64(self.columns) + vector * e.i64(VECTOR))
            for line in range(9):
                e.prefetch(weight, source + e.i64((9 * _AHEAD + line) * VECTOR))
            with e.vector(VECTOR) as lane:
                taps = [
                    [weight[source + e.i64((3 * i + j) * VECTOR) + lane] for j in range(3)]
                    for i in range(3)
                ]
                for point, value in enumerate(filtered(e, taps)):
                    place = self.u_start + sink + e.i64(point * self.pitch_u)
                    e.store(self.u, value, place + lane)

    def _input(self, number: Expr, tile: Expr, channel: Expr) -> None:
        """Take a tile's pixels, of a block of channels, to the points."""
        e, of = self.e, self.of
        height, width = of.image
        pads = of.conv.window.pads
        image, row, column = self._place(number)
        top = e.share(row * e.i64(STEP) - e.i64(pads[0]))
        left = e.share(column * e.i64(STEP) - e.i64(pads[1]))
        x = self.buffers[of.conv.x]
        pitch = of.conv.depth
        corner = e.share(
            ((image * e.i64(height) + top) * e.i64(width) + left) * e.i64(pitch) + channel
        )
        parts = self.block // VECTOR
        inside = e.both(
            e.both(top >= e.i64(0), top + e.i64(SIDE) <= e.i64(height)),
            e.both(left >= e.i64(0), left + e.i64(SIDE) <= e.i64(width)),
        )
        with e.block() as plain, e.loop(e.i64(parts)) as part:
            source = e.share(corner + part * e.i64(VECTOR))
            self._spread(x, source, (width * pitch, pitch), part, tile)
        with e.block() as border:
            copy = e.scratch(POINTS * VECTOR)
            low = [e.share(e.tir.max(e.i64(0), e.i64(0) - side)) for side in (top, left)]
            high = [
                e.share(e.minimum(e.i64(SIDE), e.i64(size) - side))
                for side, size in ((top, height), (left, width))
            ]
            with e.loop(e.i64(parts)) as part:
                source = e.share(corner + part * e.i64(VECTOR))
                with e.loop(e.i64(POINTS)) as point, e.vector(VECTOR) as lane:
                    e.store(copy, e.f32(0.0), point * e.i64(VECTOR) + lane)
                with e.loop(high[0] - low[0]) as i, e.loop(high[1] - low[1]) as j:
                    y, z = e.share(low[0] + i), e.share(low[1] + j)
                    place = e.share((y * e.i64(SIDE) + z) * e.i64(VECTOR))
                    given = e.share(source + (y * e.i64(width) + z) * e.i64(pitch))
                    with e.vector(VECTOR) as lane:
                        e.store(copy, x[given + lane], place + lane)
                self._spread(copy, e.i64(0), (SIDE * VECTOR, VECTOR), part, tile)
        e.branch(inside, plain, border)

    def _spread(
        self, x: Buffer, start: Expr, pitch: tuple[int, int], part: Expr, tile: Expr
    ) -> None:
        e = self.e
        sink = e.share((part * e.i64(self.room) + tile) * e.i64(VECTOR))
        with e.vector(VECTOR) as lane:
            given = [
                [x[start + e.i64(i * pitch[0] + j * pitch[1]) + lane] for j in range(SIDE)]
                for i in range(SIDE)
            ]
            for point, value in enumerate(input_transform(e, given)):
                place = self.v_start + sink + e.i64(point * self.pitch_v)
                e.store(self.v, value, place + lane)

    def _nothing(self, tile: Expr) -> None:
        """Let a tile that there is not be zero: products of what lies there would be thrown away,
        but numbers too small for a normal one cost time.
        """
        e = self.e
        with e.loop(e.i64(POINTS)) as point, e.loop(e.i64(self.block // VECTOR)) as part:
            place = (part * e.i64(self.room) + tile) * e.i64(VECTOR)
            at = e.share(self.v_start + point * e.i64(self.pitch_v) + place)
            with e.vector(VECTOR) as lane:
                e.store(self.v, e.f32(0.0), at + lane)

    def _products(self, rows: Expr, *, begin: bool) -> None:
        """Add a block of channels to the sums of this many rows of tiles, or begin them."""
        e, width = self.e, self.tile.vectors
        with e.loop(e.i64(POINTS)) as point, e.loop(rows) as number:
            row = e.share(number * e.i64(self.tile.rows))
            for left in range(0, self.vectors, width):
                vectors = min(width, self.vectors - left)
                self._product(point, row, left, Tile(self.tile.rows, vectors), begin=begin)

    def _product(self, point: Expr, row: Expr, left: int, tile: Tile, *, begin: bool) -> None:
        """Add a block of channels to one tile of sums."""
        e = self.e
        registers = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
        at = point * e.i64(self.pitch_m) + row * e.i64(self.columns)
        sums = e.share(self.m_start + at + e.i64(left * VECTOR))

        def place(number: int, vector: int, lane: Expr) -> Expr:
            return sums + e.i64(number * self.columns + vector * VECTOR) + lane

        for number, each in enumerate(registers):
            for vector, register in enumerate(each):
                with e.vector(VECTOR) as lane:
                    value = e.f32(0.0) if begin else self.m[place(number, vector, lane)]
                    e.store(register, value, lane)
        base = e.share(self.u_start + point * e.i64(self.pitch_u) + e.i64(left * VECTOR))
        source = e.share(self.v_start + point * e.i64(self.pitch_v) + row * e.i64(VECTOR))
        with e.loop(e.i64(self.block // VECTOR)) as part, e.loop(e.i64(VECTOR)) as c:
            k = e.share(base + (part * e.i64(VECTOR) + c) * e.i64(self.columns))
            given = e.share(source + part * e.i64(self.room * VECTOR) + c)
            multiply_add(
                e, registers, lambda r: self.v[given + e.i64(r * VECTOR)],
                lambda vector, lane: self.u[k + e.i64(vector * VECTOR) + lane],
            )  # fmt: skip
        for number, each in enumerate(registers):
            for vector, register in enumerate(each):
                with e.vector(VECTOR) as lane:
                    e.store(self.m, register[lane], place(number, vector, lane))

    def _output(self, number: Expr, tile: Expr, panel: Panel) -> None:
        """Take a tile's sums back, and write its results."""
        e, of, to, bias = self.e, self.of, panel.to, panel.bias
        height, width = of.result
        image, row, column = self._place(number)
        top, left = e.share(row * e.i64(STEP)), e.share(column * e.i64(STEP))
        results = e.scratch(STEP * STEP * VECTOR)
        high = e.share(e.minimum(e.i64(STEP), e.i64(height) - top))
        wide = e.share(e.minimum(e.i64(STEP), e.i64(width) - left))
        with e.loop(e.i64(self.vectors)) as vector:
            begin = e.share(vector * e.i64(VECTOR))
            source = e.share(self.m_start + tile * e.i64(self.columns) + begin)
            with e.vector(VECTOR) as lane:
                given = [
                    [
                        self.m[source + e.i64((SIDE * i + j) * self.pitch_m) + lane]
                        for j in range(SIDE)
                    ]
                    for i in range(SIDE)
                ]
                for place, value in enumerate(gathered(e, given)):
                    shifted = value + bias[begin + lane]
                    e.store(results, shifted, e.i64(place * VECTOR) + lane)
            with e.loop(high) as i, e.loop(wide) as j:
                pixel = (image * e.i64(height) + top + i) * e.i64(width) + left + j
                sink = e.share(pixel * e.i64(to.channels) + to.first)
                from_ = e.share((i * e.i64(STEP) + j) * e.i64(VECTOR))
                write_vector(e, results, of.conv.epilogue, to, (from_, sink + begin), VECTOR)

"""A run of tiles of a 3x3 convolution by Winograd's minimal filtering, over NHWC images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ..tile.gemm_tile import each_register, multiply_add, write_vector
from ..tile.program import ConvKernel, Panel, open_panel
from ..tile.registers import VECTOR, Tile, TileRows, even_tile, tile_rows
from .winograd_transforms import POINTS, SIDE, STEP, filtered, gathered, input_transform

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.conv import Convolution
    from ..tile.emitter import TileEmitter

# Channels whose products are summed up at once: filters, pixels and sums are 1.1 MB together then,
# on the stack of whichever thread runs.
_DEPTH = 32
# Channels that weights are asked for ahead.
_AHEAD = 8
# Multiply-adds of a step of a low tile. There are nine tiles or more: fewer rows gain nothing.
_BUSY = 12


@dataclass(frozen=True)
class Images:
    """The sizes of an image, as values.

    Args:
        given: Height and width of what is read.
        made: Of the result.
        grid: Rows of tiles, and tiles of a row.
    """

    given: tuple[Expr, Expr]
    made: tuple[Expr, Expr]
    grid: tuple[Expr, Expr]

    @staticmethod
    def of(conv: Convolution, e: TileEmitter, step: int) -> Images:
        """Return those of a convolution; computes what is not known before.

        Args:
            conv: The convolution.
            e: The emitter that writes the statements.
            step: Results along a side of a tile.
        """

        def once(size: int | str, value: Expr) -> Expr:
            return value if isinstance(size, int) else e.share(value)

        given, made = (
            [once(size, e.extent(size)) for size in spec.shape[1:3]]
            for spec in (conv.input, conv.output)
        )
        grid = [
            once(size, e.divide_up(value, step))
            for size, value in zip(conv.output.shape[1:3], made, strict=True)
        ]
        return Images((given[0], given[1]), (made[0], made[1]), (grid[0], grid[1]))

    @property
    def tiles(self) -> Expr:
        """Tiles of an image."""
        return self.grid[0] * self.grid[1]


class Run:
    """A run of tiles of one panel of `vectors` vectors: a part of its channels after another."""

    def __init__(
        self,
        of: ConvKernel,
        e: TileEmitter,
        buffers: list[Buffer],
        panel: tuple[int, int],
        images: Images,
        most: int,
        tiles: int | None,
    ) -> None:
        """Choose the tiles of products, and how points are stored.

        Args:
            of: The convolution.
            e: The emitter that writes the statements.
            buffers: The region's tensors.
            panel: Vectors of channels of a whole panel, and of this one.
            images: Their sizes.
            most: Tiles of a run, at most.
            tiles: Of an image; None if that is not known.
        """
        self.of = of
        self.whole, vectors = panel
        self.e = e
        self.buffers = buffers
        self.vectors = vectors
        self.images = images
        self.is_by_tap = tiles is None
        self.columns = vectors * VECTOR
        self.block = next(n for n in (_DEPTH, VECTOR) if of.conv.depth % n == 0)
        level = e.processor
        if tiles is None:
            self.rows = tile_rows(vectors, level, _BUSY)
        else:
            even = even_tile(min(tiles, most), vectors, level)
            self.rows = TileRows(even.rows, even.rows, even.vectors)
        low = self.rows.low
        self.room = most + low - 1 if tiles is None else ceil(most / low) * low
        # Points of filters [point, channel, column], of pixels [point, vector of channels, tile,
        # channel], and sums [point, tile, column]. From a point to the next one it is no power of
        # two, or all points of a tile would go into one set of the first level of cache.
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
        first = e.share(panel * e.i64(self.whole))
        room = e.share(self.padded(count))
        with e.loop(e.i64(of.conv.depth // self.block)) as number:
            channel = e.share(number * e.i64(self.block))
            self._weights(first, channel)
            with e.loop(count) as tile:
                self._input(start + tile, tile, channel)
            with e.loop(room - count) as tile:
                self._nothing(count + tile)
            self._all_products(e.equal(number, e.i64(0)), room)
        left = e.share(first * e.i64(VECTOR))
        made = open_panel(e, self.buffers, of.conv, left, (self.vectors, VECTOR))
        with e.loop(count) as tile:
            self._output(start + tile, tile, made)

    def padded(self, count: Expr) -> Expr:
        """Return how many tiles are computed for `count`, in whole rows of tiles."""
        e, rows = self.e, self.rows
        if rows.low == rows.tall:
            return e.divide_up(count, rows.low) * e.i64(rows.low)
        tall = e.divide_down(count, rows.tall) * e.i64(rows.tall)
        return tall + e.divide_up(count - tall, rows.low) * e.i64(rows.low)

    def _origin(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a tile, and its row and column there."""
        e, tiles, columns = self.e, self.images.tiles, self.images.grid[1]
        image = e.share(e.divide_down(number, tiles))
        inside = e.share(number - image * tiles)
        row = e.share(e.divide_down(inside, columns))
        return image, row, e.share(inside - row * columns)

    def _weights(self, first: Expr, channel: Expr) -> None:
        """Take the filters of a block of channels to the points."""
        e, of = self.e, self.of
        weight = self.buffers[of.weight]
        # One vector after the other: the taps of a channel of all of them may share a set of the
        # first level of cache, which has fewer ways.
        with e.loop(e.i64(self.vectors)) as vector, e.loop(e.i64(self.block)) as c:
            channels = of.conv.depth if self.is_by_tap else 1
            if self.is_by_tap:
                at = (first + vector) * e.i64(9 * of.conv.depth) + channel + c
                source, ahead = e.share(at * e.i64(VECTOR)), _AHEAD
            else:
                at = (first + vector) * e.i64(of.conv.depth) + channel + c
                source, ahead = e.share(at * e.i64(9 * VECTOR)), 9 * _AHEAD
            sink = e.share(c * e.i64(self.columns) + vector * e.i64(VECTOR))
            for tap in range(9):
                e.prefetch(weight, source + e.i64((ahead + tap * channels) * VECTOR))
            with e.vector(VECTOR) as lane:
                taps = [
                    [
                        weight[source + e.i64((3 * i + j) * channels * VECTOR) + lane]
                        for j in range(3)
                    ]
                    for i in range(3)
                ]
                for point, value in enumerate(filtered(e, taps)):
                    offset = self.u_start + sink + e.i64(point * self.pitch_u)
                    e.store(self.u, value, offset + lane)

    def _input(self, number: Expr, tile: Expr, channel: Expr) -> None:
        """Take a tile's pixels, of a block of channels, to the points."""
        e, of = self.e, self.of
        height, width = self.images.given
        pads = of.conv.window.pads
        image, row, column = self._origin(number)
        top = e.share(row * e.i64(STEP) - e.i64(pads[0]))
        left = e.share(column * e.i64(STEP) - e.i64(pads[1]))
        x = self.buffers[of.conv.x]
        pitch = of.conv.depth
        corner = e.share(((image * height + top) * width + left) * e.i64(pitch) + channel)
        parts = self.block // VECTOR
        inside = e.both(
            e.both(top >= e.i64(0), top + e.i64(SIDE) <= height),
            e.both(left >= e.i64(0), left + e.i64(SIDE) <= width),
        )
        with e.block() as plain, e.loop(e.i64(parts)) as part:
            source = e.share(corner + part * e.i64(VECTOR))
            self._spread(x, source, (width * e.i64(pitch), pitch), part, tile)
        with e.block() as border:
            copy = e.scratch(POINTS * VECTOR)
            low = [e.share(e.tir.max(e.i64(0), e.i64(0) - side)) for side in (top, left)]
            high = [
                e.share(e.minimum(e.i64(SIDE), size - side))
                for side, size in ((top, height), (left, width))
            ]
            with e.loop(e.i64(parts)) as part:
                source = e.share(corner + part * e.i64(VECTOR))
                with e.loop(e.i64(POINTS)) as point, e.vector(VECTOR) as lane:
                    e.store(copy, e.f32(0.0), point * e.i64(VECTOR) + lane)
                with e.loop(high[0] - low[0]) as i, e.loop(high[1] - low[1]) as j:
                    y, z = e.share(low[0] + i), e.share(low[1] + j)
                    offset = e.share((y * e.i64(SIDE) + z) * e.i64(VECTOR))
                    given = e.share(source + (y * width + z) * e.i64(pitch))
                    with e.vector(VECTOR) as lane:
                        e.store(copy, x[given + lane], offset + lane)
                self._spread(copy, e.i64(0), (e.i64(SIDE * VECTOR), VECTOR), part, tile)
        e.branch(inside, plain, border)

    def _spread(
        self, x: Buffer, start: Expr, pitch: tuple[Expr, int], part: Expr, tile: Expr
    ) -> None:
        e = self.e
        sink = e.share((part * e.i64(self.room) + tile) * e.i64(VECTOR))
        with e.vector(VECTOR) as lane:
            given = [
                [x[start + (row + e.i64(j * pitch[1])) + lane] for j in range(SIDE)]
                for row in (e.i64(i) * pitch[0] for i in range(SIDE))
            ]
            for point, value in enumerate(input_transform(e, given)):
                offset = self.v_start + sink + e.i64(point * self.pitch_v)
                e.store(self.v, value, offset + lane)

    def _nothing(self, tile: Expr) -> None:
        """Let a tile that there is not be zero: products of what lies there would be thrown away,
        but numbers too small for a normal one cost time.
        """
        e = self.e
        with e.loop(e.i64(POINTS)) as point, e.loop(e.i64(self.block // VECTOR)) as part:
            offset = (part * e.i64(self.room) + tile) * e.i64(VECTOR)
            at = e.share(self.v_start + point * e.i64(self.pitch_v) + offset)
            with e.vector(VECTOR) as lane:
                e.store(self.v, e.f32(0.0), at + lane)

    def _all_products(self, is_first: Expr, room: Expr) -> None:
        """Add a block of channels to the sums of this many tiles, or begin them."""
        e, rows = self.e, self.rows
        blocks: list[list[Expr]] = []
        for begin in (True, False):
            with e.block() as products:
                self._products(rows.tall, e.i64(0), e.divide_down(room, rows.tall), begin=begin)
            blocks.append(products)
        e.branch(is_first, *blocks)
        if rows.low != rows.tall:
            start = e.share(e.divide_down(room, rows.tall) * e.i64(rows.tall))
            number = e.divide_down(room - start, rows.low)
            self._products(rows.low, start, number, begin=is_first)  # compiled in half the time

    def _products(self, height: int, start: Expr, number: Expr, *, begin: bool | Expr) -> None:
        """Do so for rows of tiles of this height from `start` on."""
        e, width = self.e, self.rows.vectors
        with e.loop(e.i64(POINTS)) as point, e.loop(number) as each:
            row = e.share(start + each * e.i64(height))
            for left in range(0, self.vectors, width):
                vectors = min(width, self.vectors - left)
                self._product(point, row, left, Tile(height, vectors), begin=begin)

    def _product(
        self, point: Expr, row: Expr, left: int, tile: Tile, *, begin: bool | Expr
    ) -> None:
        """Add a block of channels to one tile of sums."""
        e = self.e
        registers = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
        at = point * e.i64(self.pitch_m) + row * e.i64(self.columns)
        sums = e.share(self.m_start + at + e.i64(left * VECTOR))

        def offset_of(number: int, vector: int, lane: Expr) -> Expr:
            return sums + e.i64(number * self.columns + vector * VECTOR) + lane

        for number, vector, register, lane in each_register(e, registers):
            before = self.m[offset_of(number, vector, lane)]
            if isinstance(begin, bool):
                e.store(register, e.f32(0.0) if begin else before, lane)
            else:
                e.store(register, e.select(begin, e.f32(0.0), before), lane)
        base = e.share(self.u_start + point * e.i64(self.pitch_u) + e.i64(left * VECTOR))
        source = e.share(self.v_start + point * e.i64(self.pitch_v) + row * e.i64(VECTOR))
        with e.loop(e.i64(self.block // VECTOR)) as part, e.loop(e.i64(VECTOR)) as c:
            k = e.share(base + (part * e.i64(VECTOR) + c) * e.i64(self.columns))
            given = e.share(source + part * e.i64(self.room * VECTOR) + c)
            multiply_add(
                e, registers, lambda r: self.v[given + e.i64(r * VECTOR)],
                lambda vector, lane: self.u[k + e.i64(vector * VECTOR) + lane],
            )  # fmt: skip
        for number, vector, register, lane in each_register(e, registers):
            e.store(self.m, register[lane], offset_of(number, vector, lane))

    def _output(self, number: Expr, tile: Expr, panel: Panel) -> None:
        """Take a tile's sums back, and write its results."""
        e, of, to, bias = self.e, self.of, panel.to, panel.bias
        height, width = self.images.made
        image, row, column = self._origin(number)
        top, left = e.share(row * e.i64(STEP)), e.share(column * e.i64(STEP))
        results = e.scratch(STEP * STEP * VECTOR)
        high = e.share(e.minimum(e.i64(STEP), height - top))
        wide = e.share(e.minimum(e.i64(STEP), width - left))
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
                for index, value in enumerate(gathered(e, given)):
                    shifted = value + bias[begin + lane]
                    e.store(results, shifted, e.i64(index * VECTOR) + lane)
            with e.loop(high) as i, e.loop(wide) as j:
                pixel = (image * height + top + i) * width + left + j
                sink = e.share(pixel * e.i64(to.channels) + to.first)
                from_ = e.share((i * e.i64(STEP) + j) * e.i64(VECTOR))
                write_vector(e, results, of.conv.epilogue, to, (from_, sink + begin), VECTOR)

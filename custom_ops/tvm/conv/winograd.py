"""3x3 convolutions of NHWC tensors by Winograd's minimal filtering, in float32.

Tiles of 4 x 4 results need 36 products for each pair of channels where the plain way has 144
(Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308). Both factors are taken to 36 points, one
matrix product for each point follows, and its results are taken back with bias and epilogue:

    result = A' [(G g G') * (B' d B)] A

Everything is done for one panel of channels and one run of tiles, so that nothing of it leaves the
second level of cache and weights lie in memory as they do for the other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import by_channel
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.operators.window import Window
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.emitter import TileEmitter
from ..tile.gemm_tile import each_register, multiply_add, write_vector
from ..tile.program import ConvKernel, Panel, open_panel
from ..tile.registers import VECTOR, Tile, even_tile
from .few_pixels import RUN, FewPixels
from .direct import runtime_ns, summed_ns
from .rates import OUTPUT_NS
from .winograd_transforms import POINTS, SIDE, STEP, filtered, gathered, input_transform

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Vectors of channels of a panel, and tiles of a run: more are more than a second level of cache.
_MOST_VECTORS, _MOST_TILES = 4, 56
# Units that there should be for threads, and tiles that the filters of a panel are worth taking to
# the points for.
_UNITS, _LEAST_TILES = 8, 14
# The units that a batch is cut into that is not known, and images whose sizes are not known.
_RUNS, _IMAGE_RUNS = 16, 64
_PICOSECONDS_PER_MULTIPLY = 6
# Channels whose products are summed up at once: filters, pixels and sums are 1.1 MB together then,
# on the stack of whichever thread runs.
_DEPTH = 32
# Tiles of a run that has few.
_LOW = 5
# Picoseconds of a pair of channels: a pixel by the plain way; the filters of a run beyond what that
# does for each run, and a tile at the points. Emerald Rapids, one thread, 2026-11-29: images of 4
# x 4 to 16 x 16 pixels, 64 channels.
_PIXEL, _FILTERS, _POINTS_OF_TILE = 147, 3_800, 690
# Channels that weights are asked for ahead.
_AHEAD = 8
# See `rates`: of a multiply-add of the plain way, in whole tiles of this many results a side; of a
# channel of a tile on its way to the points or back; of a weight on its way there.
_MULTIPLY_NS, _TILE, _SPREAD_NS, _FILTER_NS = 1 / 230, 4, 2.5, 0.45
# Channels that are read for this many that are written, each time taken to the points.
_PANEL = 64


@dataclass(frozen=True)
class WinogradConv(ConvKernel):
    """A 3x3 convolution with stride 1: NHWC, one group, multiples of 16 channels.

    Images whose sizes are not known have results of the same sizes. The weight is float32
    [V, 9 C, 16] of V vectors of output channels.
    """

    @property
    def tiles(self) -> int | None:
        """Tiles of an image; None if its sizes are not known."""
        sizes = [extent_of(size).static for size in self.conv.output.shape[1:3]]
        return None if None in sizes else prod(ceil(size / STEP) for size in sizes if size)

    @property
    def total(self) -> int | None:
        """Tiles of all images; None if that is not known."""
        batch, tiles = extent_of(self.conv.output.shape[0]).static, self.tiles
        return None if batch is None or tiles is None else batch * tiles

    @property
    def vectors(self) -> int:
        """Vectors of channels of a panel; the last panel may have fewer."""
        whole = self.conv.channels // VECTOR
        return next((n for n in (4, 3) if whole % n == 0), min(whole, _MOST_VECTORS))

    @property
    def panels(self) -> int:
        """Panels of channels."""
        return ceil(self.conv.channels // VECTOR / self.vectors)

    @property
    def run(self) -> int:
        """Tiles of a unit, at most; they may be those of several images."""
        count, total = self.tiles, self.total
        if count is None:
            return _MOST_TILES
        if total is None:
            return ceil(count / ceil(count / _MOST_TILES)) * max(1, _MOST_TILES // count)
        wanted = min(ceil(_UNITS / self.panels), total // _LEAST_TILES)
        return ceil(total / max(1, wanted, ceil(total / _MOST_TILES)))

    def launch(self, level: str) -> Launch:
        """Units are runs of tiles of one panel of channels."""
        del level
        total = self.total
        unknown = _IMAGE_RUNS if self.tiles is None else _RUNS
        runs = unknown if total is None else ceil(total / self.run)
        points = self.run * STEP * STEP * self.vectors * VECTOR
        cost = 9 * self.conv.depth * _PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        return Launch((Extent(self.panels), Extent(runs)), Extent(points), cost, ())

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit sizes and what lies on the stack; return what emits a unit."""
        level = e.processor
        units = self.launch(level).units
        whole, rest = divmod(self.conv.channels // VECTOR, self.vectors)
        images = _Images.of(self.conv, e)
        made = [
            _Run(self, e, buffers, level, each, images) for each in (self.vectors, rest) if each
        ]
        sizes = zip(*(run.sizes for run in made), strict=True)
        scratch = [e.aligned(max(each), "float32") for each in sizes]
        total = e.share(e.extent(self.conv.output.shape[0]) * images.tiles)
        # Of sizes that are not known a unit has several runs, or none.
        runs = e.share(e.divide_up(total, self.run))
        of_unit = e.share(e.divide_up(runs, units[1].factor))

        def minimal(panel: Expr, number: Expr) -> None:
            first = e.share(number * of_unit)
            last = e.share(e.minimum(first + of_unit, runs))
            with e.loop(e.tir.max(last - first, e.i64(0))) as each:
                start = e.share((first + each) * e.i64(self.run))
                count = e.share(e.minimum(e.i64(self.run), total - start))
                blocks: list[list[Expr]] = []
                for run in made:
                    with e.block() as block:
                        run.emit(scratch, panel, start, count)
                    blocks.append(block)
                if rest:
                    e.branch(panel < e.i64(whole), *blocks)
                else:
                    e.when(count > e.i64(0), *blocks)

        if self.tiles is not None:
            return lambda at: minimal(*e.decode(at, units))
        pixels = e.share(e.extent(self.conv.output.shape[0]) * images.made[0] * images.made[1])
        is_few = self._is_few(e, pixels, total, made[0])
        few_runs = e.share(e.divide_up(pixels, RUN))
        few_of_unit = e.share(e.divide_up(few_runs, units[1].factor))

        def plain(panel: Expr, number: Expr) -> None:
            first = e.share(number * few_of_unit)
            last = e.share(e.minimum(first + few_of_unit, few_runs))
            left = e.share(panel * e.i64(self.vectors * VECTOR))
            with e.loop(e.tir.max(last - first, e.i64(0))) as each:
                start = e.share((first + each) * e.i64(RUN))
                count = e.share(e.minimum(e.i64(RUN), pixels - start))
                blocks: list[list[Expr]] = []
                for run in made:
                    with e.block() as block:
                        run.few(scratch[1:], left, (start, count))
                    blocks.append(block)
                if rest:
                    e.branch(panel < e.i64(whole), *blocks)
                else:
                    e.when(count > e.i64(0), *blocks)

        def unit(at: Expr) -> None:
            coordinates = e.decode(at, units)
            blocks = []
            for emit in (plain, minimal):
                with e.block() as block:
                    emit(*coordinates)
                blocks.append(block)
            e.branch(is_few, *blocks)

        return unit

    def _is_few(self, e: TileEmitter, pixels: Expr, tiles: Expr, run: _Run) -> Expr:
        """Say whether all pixels are computed sooner without taking anything to the points."""
        runs = e.divide_up(tiles, self.run)
        low, high = (e.divide_up(tiles, t.rows) * e.i64(t.rows) for t in (run.low, run.tile))
        rows = e.select(tiles <= e.i64(run.most_low), low, high)
        filtered_first = runs * e.i64(_FILTERS) + rows * e.i64(_POINTS_OF_TILE)
        return e.share(pixels * e.i64(_PIXEL) < filtered_first)


@dataclass(frozen=True)
class _Images:
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
    def of(conv: Convolution, e: TileEmitter) -> _Images:
        """Return those of a convolution; computes what is not known before."""

        def once(size: int | str, value: Expr) -> Expr:
            return value if isinstance(size, int) else e.share(value)

        given, made = (
            [once(size, e.extent(size)) for size in spec.shape[1:3]]
            for spec in (conv.input, conv.output)
        )
        grid = [
            once(size, e.divide_up(value, STEP))
            for size, value in zip(conv.output.shape[1:3], made, strict=True)
        ]
        return _Images((given[0], given[1]), (made[0], made[1]), (grid[0], grid[1]))

    @property
    def tiles(self) -> Expr:
        """Tiles of an image."""
        return self.grid[0] * self.grid[1]


class _Run:
    """A run of tiles of one panel of `vectors` vectors: a part of its channels after another."""

    def __init__(
        self,
        of: WinogradConv,
        e: TileEmitter,
        buffers: list[Buffer],
        level: str,
        vectors: int,
        images: _Images,
    ) -> None:
        self.of = of
        self.e = e
        self.buffers = buffers
        self.vectors = vectors
        self.images = images
        self.columns = vectors * VECTOR
        self.block = next(n for n in (_DEPTH, VECTOR) if of.conv.depth % n == 0)
        self.tile = even_tile(min(of.tiles or of.run, of.run), vectors, level)
        # Runs of few tiles, where the images' sizes are not known.
        self.low = even_tile(_LOW, vectors, level) if of.tiles is None else self.tile
        self.most_low = 2 * self.low.rows
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
        is_low = e.share(count <= e.i64(self.most_low))
        padded = [e.divide_up(count, t.rows) * e.i64(t.rows) for t in (self.low, self.tile)]
        room = e.share(e.select(is_low, *padded))
        with e.loop(e.i64(of.conv.depth // self.block)) as number:
            channel = e.share(number * e.i64(self.block))
            self._weights(first, channel)
            with e.loop(count) as tile:
                self._input(start + tile, tile, channel)
            with e.loop(room - count) as tile:
                self._nothing(count + tile)
            self._each_height(is_low, e.equal(number, e.i64(0)), room)
        left = e.share(first * e.i64(VECTOR))
        made = open_panel(e, self.buffers, of.conv, left, (self.vectors, VECTOR))
        with e.loop(count) as tile:
            self._output(start + tile, tile, made)

    def few(
        self, scratch: Sequence[tuple[Buffer, Expr]], left: Expr, run: tuple[Expr, Expr]
    ) -> None:
        """Compute a run of pixels without taking anything to the points."""
        e, of, images = self.e, self.of, self.images
        plain = FewPixels(
            of.conv, self.buffers[of.weight], self.vectors, VECTOR, images.given,
            images.made, e,
        )  # fmt: skip
        panel = open_panel(e, self.buffers, of.conv, left, (self.vectors, VECTOR))
        plain.emit(self.buffers[of.conv.x], scratch, panel, run)

    def _place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
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
                    offset = self.u_start + sink + e.i64(point * self.pitch_u)
                    e.store(self.u, value, offset + lane)

    def _input(self, number: Expr, tile: Expr, channel: Expr) -> None:
        """Take a tile's pixels, of a block of channels, to the points."""
        e, of = self.e, self.of
        height, width = self.images.given
        pads = of.conv.window.pads
        image, row, column = self._place(number)
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

    def _each_height(self, is_low: Expr, is_first: Expr, room: Expr) -> None:
        """Emit the products of runs of few tiles and of others, for the first block and others."""
        e = self.e
        heights: list[list[Expr]] = []
        for shape in dict.fromkeys((self.low, self.tile)):
            with e.block() as block:
                blocks: list[list[Expr]] = []
                for begin in (True, False):
                    with e.block() as products:
                        self._products(shape, room, begin=begin)
                    blocks.append(products)
                e.branch(is_first, *blocks)
            heights.append(block)
        if len(heights) == 1:
            e.when(room > e.i64(0), heights[0])
        else:
            e.branch(is_low, *heights)

    def _products(self, tile: Tile, room: Expr, *, begin: bool) -> None:
        """Add a block of channels to the sums of this many tiles, or begin them."""
        e, width, height = self.e, tile.vectors, tile.rows
        rows = e.divide_down(room, height)
        with e.loop(e.i64(POINTS)) as point, e.loop(rows) as number:
            row = e.share(number * e.i64(height))
            for left in range(0, self.vectors, width):
                vectors = min(width, self.vectors - left)
                self._product(point, row, left, Tile(height, vectors), begin=begin)

    def _product(self, point: Expr, row: Expr, left: int, tile: Tile, *, begin: bool) -> None:
        """Add a block of channels to one tile of sums."""
        e = self.e
        registers = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
        at = point * e.i64(self.pitch_m) + row * e.i64(self.columns)
        sums = e.share(self.m_start + at + e.i64(left * VECTOR))

        def place(number: int, vector: int, lane: Expr) -> Expr:
            return sums + e.i64(number * self.columns + vector * VECTOR) + lane

        for number, vector, register, lane in each_register(e, registers):
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
        for number, vector, register, lane in each_register(e, registers):
            e.store(self.m, register[lane], place(number, vector, lane))

    def _output(self, number: Expr, tile: Expr, panel: Panel) -> None:
        """Take a tile's sums back, and write its results."""
        e, of, to, bias = self.e, self.of, panel.to, panel.bias
        height, width = self.images.made
        image, row, column = self._place(number)
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


def winograd_ns(sizes: ConvSizes) -> float:
    """Return nanoseconds of this kernel, its result not written."""
    before, after = sizes.given[1], sizes.made[1]
    batch, _, height, width = sizes.made
    tiles = batch * ceil(height / _TILE) * ceil(width / _TILE)
    spread = tiles * (before * ceil(after / _PANEL) + after) * _SPREAD_NS
    return before * after * 9 * (tiles * _TILE**2 * _MULTIPLY_NS + _FILTER_NS) + spread


def _takes(sizes: ConvSizes) -> bool:
    """Say whether the kernel computes a convolution, and is the faster one."""
    if sizes.filters[2:] != (3, 3) or not sizes.moves_by_one or sizes.groups != 1:
        return False
    channels = sizes.given[1], sizes.made[1]
    if 0 in (*sizes.given[1:], *sizes.made[1:]) or any(count % VECTOR for count in channels):
        return False
    top, left, bottom, right = sizes.pads
    if not sizes.is_image_known and (top + bottom, left + right) != (2, 2):
        return False  # of images of any size, where the result is as large as the source
    return winograd_ns(sizes) < summed_ns(sizes)


def _estimate(sizes: ConvSizes) -> tuple[float, float]:
    return runtime_ns(sizes), winograd_ns(sizes) + sizes.outputs * OUTPUT_NS


ANCHOR = ConvAnchor("winograd_conv", _takes, by_channel, _estimate)


def _is_walkable(given: int | str, made: int | str) -> bool:
    """Say whether sides of what is read and of the result are known, or are equal in every run."""
    if isinstance(given, int) and isinstance(made, int):
        return given > 0 and made > 0
    return given == made


def match(signature: RegionSignature) -> WinogradConv | Refused | None:
    """Return the region as a 3x3 convolution of stride 1; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    window = conv.window
    if window != Window((3, 3), (1, 1), (1, 1), window.pads) or conv.groups != 1 or conv.planar:
        return None
    if not all(map(_is_walkable, conv.input.shape[1:3], conv.output.shape[1:3])):
        return None
    if conv.depth % VECTOR or conv.channels % VECTOR or conv.gate is not None:
        return None
    if conv.input.shape[0] == 0 or len(signature.outputs) != 1:
        return Refused("a 3x3 convolution of nothing, or with a second result")
    if conv.narrow is not None:
        return conv.narrow
    weight = packed_weight(conv)
    return None if weight is None else WinogradConv(conv, weight)

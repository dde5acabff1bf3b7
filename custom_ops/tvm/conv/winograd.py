"""3x3 convolutions of NHWC tensors by Winograd's minimal filtering, in float32.

Tiles of 4 x 4 results need 36 products for each pair of channels where the plain way has 144
(Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308). Both factors are taken to 36 points, one
matrix product for each point follows, and its results are taken back with bias and epilogue:

    result = A' [(G g G') * (B' d B)] A

Everything is done for one panel of channels and one run of tiles, so that nothing of it leaves the
second level of cache and weights lie in memory as they do for the other kernels.

All filters are taken to the points, however few tiles there are. So for images of sizes that are
not known the kernel has a second algorithm, sums over taps. It chooses between them at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import by_channel, by_tap
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.operators.window import Window
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.emitter import TileEmitter
from ..tile.program import ConvKernel
from ..tile.registers import VECTOR
from .algorithm import Algorithm, launch_of_any_size
from .direct import runtime_ns, summed_ns
from .rates import OUTPUT_NS
from .tap_sums import by_taps
from .winograd_run import Images, Run
from .winograd_transforms import STEP

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Vectors of channels of a panel, and tiles of a run: more are more than a second level of cache.
_MOST_VECTORS, _MOST_TILES = 4, 56
# Units that there should be for threads, and tiles that the filters of a panel are worth taking to
# the points for.
_UNITS, _LEAST_TILES = 8, 14
# The units that a batch is cut into that is not known.
_RUNS = 16
_PICOSECONDS_PER_MULTIPLY = 6
# Picoseconds of a pair of channels, on Emerald Rapids (one thread, 2026-11-29, images of 5 x 5 to
# 28 x 28 pixels, 64 and 256 channels): the filters of a run, a tile at the points, and a tap of a
# pixel. Tiles are those of whole rows.
_FILTERS, _TILE_AT_POINTS, _TAP = 2_100, 730, 13
# See `rates`: of a multiply-add of the plain way, in whole tiles of this many results a side; of a
# channel of a tile on its way to the points or back; of a weight on its way there.
_MULTIPLY_NS, _TILE, _SPREAD_NS, _FILTER_NS = 1 / 230, 4, 2.5, 0.45
# Channels that are read for this many that are written, each time taken to the points.
_PANEL = 64


@dataclass(frozen=True)
class WinogradConv(ConvKernel):
    """A 3x3 convolution with stride 1: NHWC, one group, multiples of 16 channels.

    The weight is float32 [V, 9 C, 16] of V vectors of output channels. Images whose sizes are not
    known have results of the same sizes, and a weight [V, 9, C, 16].
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
        if self.tiles is None:
            return launch_of_any_size(self.conv, self.panels, self.vectors)
        total = self.total
        runs = _RUNS if total is None else ceil(total / self.run)
        points = self.run * STEP**2 * self.vectors * VECTOR
        cost = 9 * self.conv.depth * _PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        return Launch((Extent(self.panels), Extent(runs)), Extent(points), cost, ())

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit sizes and what lies on the stack; return what emits a unit."""
        algorithms = [self._by_tiles(e, buffers)]
        if self.tiles is None:
            algorithms.append(by_taps(self, e, buffers, self._panel_sizes, _TAP))
        sizes = zip(*(run.sizes for each in algorithms for run in each.runs), strict=True)
        scratch = [e.aligned(max(each), "float32") for each in sizes]
        units = self.launch(e.processor).units
        whole = self.conv.channels // VECTOR // self.vectors
        emitters = [
            algorithm.writer(e, scratch, units[1].factor, whole) for algorithm in algorithms
        ]
        if len(algorithms) == 1:
            return lambda at: emitters[0](*e.decode(at, units))
        is_few = e.share(algorithms[1].cost < algorithms[0].cost)

        def unit(at: Expr) -> None:
            coordinates = e.decode(at, units)
            blocks: list[list[Expr]] = []
            for emit in reversed(emitters):
                with e.block() as block:
                    emit(*coordinates)
                blocks.append(block)
            e.branch(is_few, *blocks)

        return unit

    @property
    def _panel_sizes(self) -> Sequence[tuple[int, int]]:
        """Vectors of whole panels, and of the last one if it has fewer; lanes of the last."""
        rest = self.conv.channels // VECTOR % self.vectors
        return [(count, VECTOR) for count in (self.vectors, rest) if count]

    def _by_tiles(self, e: TileEmitter, buffers: list[Buffer]) -> Algorithm:
        """Compute what is known at run time of tiles."""
        images = Images.of(self.conv, e, STEP)
        runs = [
            Run(self, e, buffers, (self.vectors, vectors), images, self.run, self.tiles)
            for vectors, _ in self._panel_sizes
        ]
        total = e.share(e.extent(self.conv.output.shape[0]) * images.tiles)
        count = e.share(e.divide_up(total, self.run))
        cost = count * e.i64(_FILTERS) + runs[0].padded(total) * e.i64(_TILE_AT_POINTS)
        return Algorithm(runs, total, count, e.i64(self.run), e.share(cost))


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


def _of_known_size(sizes: ConvSizes) -> bool:
    return sizes.is_image_known and _takes(sizes)


def _of_any_size(sizes: ConvSizes) -> bool:
    return not sizes.is_image_known and _takes(sizes)


ANCHOR = ConvAnchor("winograd_conv", _of_known_size, by_channel, _estimate)
ANY_SIZE = ConvAnchor("winograd_conv", _of_any_size, by_tap, _estimate)


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
    kernel = WinogradConv(conv, 0)
    weight = packed_weight(conv, by_channel if kernel.tiles is not None else by_tap)
    return None if weight is None else replace(kernel, weight=weight)

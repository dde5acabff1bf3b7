"""3x3 convolutions of NHWC tensors by Winograd's minimal filtering, in float32.

Tiles of 4 x 4 results need 36 products for each pair of channels where the plain way has 144
(Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308). Both factors are taken to 36 points, one
matrix product for each point follows, and its results are taken back with bias and epilogue:

    result = A' [(G g G') * (B' d B)] A

Everything is done for one panel of channels and one run of tiles, so that nothing of it leaves the
second level of cache and weights lie in memory as they do for the other kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused

from ...forms.conv import Convolution, Window, packed_weight, read_convolution
from ..tile.registers import VECTOR
from .winograd_transforms import STEP

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# Vectors of channels of a panel, and tiles of a run: more are more than a second level of cache.
_MOST_VECTORS, _MOST_TILES = 4, 56
# Units that there should be for threads, and tiles that the filters of a panel are worth taking to
# the points for; the runs that a batch is cut into that is not known.
_UNITS, _LEAST_TILES, _RUNS = 8, 14, 16
_PICOSECONDS_PER_MULTIPLY = 6
_PICOSECONDS_PER_FLOP = 31


@dataclass(frozen=True)
class WinogradConv:
    """A 3x3 convolution with stride 1.

    Args:
        conv: NHWC of known size, one group, multiples of 16 channels.
        weight: The input float32 [V, 9 C, 16] of V vectors of output channels.
    """

    conv: Convolution
    weight: int

    @property
    def depth(self) -> int:
        """Channels that are read."""
        depth = self.conv.input.shape[3]
        assert isinstance(depth, int)
        return depth

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of what is read."""
        _, height, width, _ = self.conv.input.shape
        assert isinstance(height, int)
        assert isinstance(width, int)
        return height, width

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result."""
        _, height, width, _ = self.conv.output.shape
        assert isinstance(height, int)
        assert isinstance(width, int)
        return height, width

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of an image: rows, and in a row."""
        return ceil(self.result[0] / STEP), ceil(self.result[1] / STEP)

    @property
    def total(self) -> Extent:
        """Tiles of all images."""
        return extent_of(self.conv.output.shape[0]) * Extent(self.tiles[0] * self.tiles[1])

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
        count, total = self.tiles[0] * self.tiles[1], self.total.static
        if total is None:
            return ceil(count / ceil(count / _MOST_TILES)) * max(1, _MOST_TILES // count)
        wanted = min(ceil(_UNITS / self.panels), total // _LEAST_TILES)
        return ceil(total / max(1, wanted, ceil(total / _MOST_TILES)))

    def launch(self, level: str) -> Launch:
        """Units are runs of tiles of one panel of channels."""
        del level
        total = self.total.static
        runs = _RUNS if total is None else ceil(total / self.run)
        points = self.run * STEP * STEP * self.vectors * VECTOR
        cost = 9 * self.depth * _PICOSECONDS_PER_MULTIPLY
        cost += self.conv.epilogue.flops * _PICOSECONDS_PER_FLOP
        return Launch((Extent(self.panels), Extent(runs)), Extent(points), cost, ())

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        from ..tile.emitter import TileEmitter
        from .winograd_tiles import Run

        e = TileEmitter(symbol)
        buffers, begin, end = e.parameters(self.conv.signature)
        units = self.launch(level).units
        whole, rest = divmod(self.conv.channels // VECTOR, self.vectors)
        made = [Run(self, e, buffers, level, each) for each in (self.vectors, rest) if each]
        sizes = zip(*(run.sizes for run in made), strict=True)
        scratch = [e.aligned(max(each), "float32") for each in sizes]
        total = e.share(e.extent(self.total))
        # Of a batch that is not known a unit has several runs, or none.
        runs = e.share(e.divide_up(total, self.run))
        of_unit = e.share(e.divide_up(runs, units[1].factor))
        with e.loop(end - begin) as index:
            panel, number = e.decode(begin + index, units)
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
        return e.function()


def match(signature: RegionSignature) -> WinogradConv | Refused | None:
    """Return the region as a 3x3 convolution of stride 1; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    window = conv.window
    if window != Window((3, 3), (1, 1), (1, 1), window.pads) or conv.groups != 1 or conv.planar:
        return None
    depth = conv.input.shape[3]
    assert isinstance(depth, int)
    sizes = (*conv.input.shape[1:3], *conv.output.shape[1:3])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    if depth % VECTOR or conv.channels % VECTOR or conv.gate is not None:
        return None
    if conv.input.shape[0] == 0 or len(signature.outputs) != 1:
        return Refused("a 3x3 convolution of nothing, or with a second result")
    if conv.narrow is not None:
        return conv.narrow
    weight = packed_weight(conv, 9 * depth)
    return None if weight is None else WinogradConv(conv, weight)

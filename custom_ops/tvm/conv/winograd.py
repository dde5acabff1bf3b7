"""3x3 convolutions of NHWC tensors by Winograd's minimal filtering, in float32.

Tiles of 4 x 4 results need 36 products for each pair of channels where the plain way has 144
(Winograd 1980; Lavin and Gray 2015, arXiv:1509.09308). Both factors are taken to 36 points, one
matrix product for each point follows, and its results are taken back with bias and epilogue:

    result = A' [(G g G') * (B' d B)] A

Everything is done for one panel of channels and one run of tiles, so that nothing of it leaves the
second level of cache and weights lie in memory as they do for the other kernels.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.layouts.conv_filters import by_channel
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

from ...forms.conv import Convolution, Window, packed_weight, read_convolution
from ..tile.emitter import TileEmitter
from ..tile.registers import VECTOR
from .direct import runtime_ns, summed_ns
from .rates import OUTPUT_NS
from .winograd_plan import WinogradPlan
from .winograd_tiles import Run

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr


# See `rates`: of a multiply-add of the plain way, in whole tiles of this many results a side; of a
# channel of a tile on its way to the points or back; of a weight on its way there.
_MULTIPLY_NS, _TILE, _SPREAD_NS, _FILTER_NS = 1 / 230, 4, 2.5, 0.45
# Channels that are read for this many that are written, each time taken to the points.
_PANEL = 64


class WinogradConv(WinogradPlan):
    """A 3x3 convolution with stride 1, and its kernel."""

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
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
    known = (*sizes.given[1:], *sizes.made[1:])
    if not sizes.is_image_known or 0 in known or known[0] % VECTOR or known[3] % VECTOR:
        return False
    return winograd_ns(sizes) < summed_ns(sizes)


def _estimate(sizes: ConvSizes) -> tuple[float, float]:
    return runtime_ns(sizes), winograd_ns(sizes) + sizes.outputs * OUTPUT_NS


ANCHOR = ConvAnchor("winograd_conv", _takes, by_channel, _estimate)


def match(signature: RegionSignature) -> WinogradConv | Refused | None:
    """Return the region as a 3x3 convolution of stride 1; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    window = conv.window
    if window != Window((3, 3), (1, 1), (1, 1), window.pads) or conv.groups != 1 or conv.planar:
        return None
    sizes = (*conv.input.shape[1:3], *conv.output.shape[1:3])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    if conv.depth % VECTOR or conv.channels % VECTOR or conv.gate is not None:
        return None
    if conv.input.shape[0] == 0 or len(signature.outputs) != 1:
        return Refused("a 3x3 convolution of nothing, or with a second result")
    if conv.narrow is not None:
        return conv.narrow
    weight = packed_weight(conv)
    return None if weight is None else WinogradConv(conv, weight)

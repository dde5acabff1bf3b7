"""Convolutions of NHWC images whose width is not known before: sums over taps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.layouts.conv_filters import by_tap
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

from ...forms.conv import Convolution, packed_weight, read_convolution
from ..tile.emitter import TileEmitter
from ..tile.program import PICOSECONDS_PER_MULTIPLY, ConvKernel, Panels
from ..tile.registers import VECTOR
from .algorithm import launch_of_any_size
from .tap_sums import by_taps

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Vectors of channels of a panel, at most.
_MOST_VECTORS = 4
# Taps, at most: lists of the pixels that they meet are on the stack, 1.2 KB of each.
_MOST_TAPS = 128


@dataclass(frozen=True)
class AnySizeConv(ConvKernel):
    """A convolution of any window: NHWC, one group, sizes of the image known at run time only.

    Its weight is float32 [V, kh kw, C, 16] of V vectors of output channels.
    """

    @property
    def panels(self) -> Panels:
        """Panels of channels."""
        whole = ceil(self.conv.channels / VECTOR)
        vectors = next((n for n in (4, 3) if whole % n == 0), min(whole, _MOST_VECTORS))
        return Panels(self.conv.channels, vectors)

    def launch(self, level: str) -> Launch:
        """Units are runs of pixels of one panel of channels."""
        del level
        return launch_of_any_size(self.conv, self.panels.count, self.panels.vectors)

    def writer(self, e: TileEmitter, buffers: list[Buffer]) -> Callable[[Expr], None]:
        """Emit sizes and what lies on the stack; return what emits a unit."""
        panels = self.panels
        sizes = list(dict.fromkeys((panels.size(0), panels.size(panels.count - 1))))
        algorithm = by_taps(self, e, buffers, sizes, PICOSECONDS_PER_MULTIPLY)
        scratch = [
            e.aligned(max(each), "float32")
            for each in zip(*(run.sizes for run in algorithm.runs), strict=True)
        ]
        units = self.launch(e.processor).units
        emit = algorithm.writer(e, scratch, units[1].factor, panels.count - len(sizes) + 1)
        return lambda at: emit(*e.decode(at, units))


def match(signature: RegionSignature) -> AnySizeConv | Refused | None:
    """Return the region as a convolution of images of any size; None if it is something else."""
    conv = read_convolution(signature)
    if not isinstance(conv, Convolution):
        return conv
    if conv.planar or conv.groups != 1 or conv.gate is not None:
        return None
    if conv.narrow is not None:
        return conv.narrow
    if len(signature.outputs) != 1 or 0 in (*conv.input.shape, *conv.output.shape):
        return Refused("a convolution of nothing, or with a second result")
    if conv.window.taps > _MOST_TAPS:
        return Refused(f"more than {_MOST_TAPS} taps over rows of a width that is not known")
    weight = packed_weight(conv, by_tap)
    return Refused("a weight that is not packed") if weight is None else AnySizeConv(conv, weight)

"""What a convolution of NHWC images is computed by: runs of tiles or pixels, panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Protocol

from ortkit.kernels.backend import Launch
from ortkit.kernels.sizes import Extent, extent_of, product

from ..tile.program import PICOSECONDS_PER_MULTIPLY
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ...forms.conv import Convolution
    from ..tile.emitter import TileEmitter

# Units of a panel of channels, of images of unknown sizes.
_UNITS = 64
# Nanoseconds of a weight, which comes from memory: all that few pixels cost. Of a 3x3 filter one
# pixel reads a ninth.
_WEIGHT_NS = 0.15


def launch_of_any_size(conv: Convolution, panels: int, vectors: int) -> Launch:
    """Return the launch of a convolution of images of unknown sizes.

    A point is a pixel of the result, of which each unit computes an equal part.

    Args:
        conv: The convolution.
        panels: Of channels.
        vectors: Of a panel.
    """
    pixels = product(extent_of(size) for size in conv.output.shape[:3])
    multiplies = conv.depth * conv.window.taps * PICOSECONDS_PER_MULTIPLY
    of_pixel = (multiplies + conv.epilogue.picoseconds) * vectors * VECTOR
    weights = conv.depth * conv.window.taps * conv.channels * _WEIGHT_NS
    units = Extent(panels), Extent(_UNITS)
    return Launch(units, pixels, ceil(of_pixel / _UNITS), (), ceil(weights))


class EmitsRun(Protocol):
    """What emits a run of one panel."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Float32 numbers of three arrays on the stack."""
        ...

    def emit(
        self, scratch: Sequence[tuple[Buffer, Expr]], panel: Expr, start: Expr, count: Expr
    ) -> None:
        """Compute `count` tiles or pixels from `start` on, of one panel of channels."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """One of the algorithms that compute all results.

    Args:
        runs: What emits a run of whole panels of channels, and of a last one that has fewer.
        total: Tiles of all images, or pixels.
        count: Runs.
        most: Tiles or pixels of a run, at most.
        cost: Picoseconds of a pair of channels.
    """

    runs: Sequence[EmitsRun]
    total: Expr
    count: Expr
    most: Expr
    cost: Expr

    def writer(
        self, e: TileEmitter, scratch: Sequence[tuple[Buffer, Expr]], units: int, whole: int
    ) -> Callable[[Expr, Expr], None]:
        """Return what emits a unit, given its panel and its number.

        Args:
            e: The emitter that writes the statements.
            scratch: Arrays of `sizes`, and where their first element is.
            units: Of a panel. Of sizes that are not known a unit has several runs, or none.
            whole: Panels before the last one.
        """

        def unit(panel: Expr, number: Expr) -> None:
            # Runs are as far apart as can be: neighbouring units are one thread's.
            first = e.share(e.divide_down(number * self.count, units))
            last = e.share(e.divide_down((number + e.i64(1)) * self.count, units))
            with e.loop(last - first) as each:
                start = e.share((first + each) * self.most)
                count = e.share(e.minimum(self.most, self.total - start))
                blocks: list[list[Expr]] = []
                for run in self.runs:
                    with e.block() as block:
                        run.emit(scratch, panel, start, count)
                    blocks.append(block)
                if len(blocks) > 1:
                    e.branch(panel < e.i64(whole), *blocks)
                else:
                    e.when(count > e.i64(0), *blocks)

        return unit

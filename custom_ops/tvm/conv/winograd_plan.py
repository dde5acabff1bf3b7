"""How a 3x3 convolution is cut into runs of tiles and panels of channels: see `winograd`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ortkit.kernels.backend import Launch
from ortkit.kernels.sizes import Extent, extent_of, known

from ...forms.conv import Convolution
from ..tile.registers import VECTOR
from .winograd_transforms import STEP

# Vectors of channels of a panel, and tiles of a run: more are more than a second level of cache.
_MOST_VECTORS, _MOST_TILES = 4, 56
# Units that there should be for threads, and tiles that the filters of a panel are worth taking to
# the points for; the runs that a batch is cut into that is not known.
_UNITS, _LEAST_TILES, _RUNS = 8, 14, 16
_PICOSECONDS_PER_MULTIPLY = 6


@dataclass(frozen=True)
class WinogradPlan:
    """A 3x3 convolution with stride 1.

    Args:
        conv: NHWC of known size, one group, multiples of 16 channels.
        weight: The input float32 [V, 9 C, 16] of V vectors of output channels.
    """

    conv: Convolution
    weight: int

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of what is read."""
        height, width = known(self.conv.input.shape[1:3])
        return height, width

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = known(self.conv.output.shape[1:3])
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
        cost = 9 * self.conv.depth * _PICOSECONDS_PER_MULTIPLY + self.conv.epilogue.picoseconds
        return Launch((Extent(self.panels), Extent(runs)), Extent(points), cost, ())

"""The linear maps of Winograd's F(4 x 4, 3 x 3) and F(2 x 2, 3 x 3) on the lanes of a vector loop.

The points are 0, +-a, +-b and infinity; of the smaller tiles 0, +-1 and infinity. Rows of B' are
the coefficients of the product of the other points' factors, columns of A' the powers of the
point, rows of G those of three coefficients over what the two others make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

    from ..tile.emitter import TileEmitter

# These are the most exact of those that were tried: sums of 128 channels are off by half as much
# as with the usual 1 and 2.
_A, _B = 0.75, 1.5

_Line = Sequence["Expr"]
_Map = Callable[["TileEmitter", _Line], list["Expr"]]


@dataclass(frozen=True)
class Filtering:
    """One of the two: its three maps, each of one line of a square.

    Args:
        step: Results along a side of a tile.
        pixels: B' d.
        taps: G g.
        sums: A' m.
    """

    step: int
    pixels: _Map
    taps: _Map
    sums: _Map

    @property
    def side(self) -> int:
        """Points along a side, and pixels that a tile reads."""
        return self.step + 2

    @property
    def points(self) -> int:
        """Points of a tile."""
        return self.side**2

    def transformed(self, e: TileEmitter, pixels: Sequence[_Line]) -> list[Expr]:
        """Return B' d B of a square of pixels, point by point."""
        return _both(e, pixels, self.pixels)

    def filtered(self, e: TileEmitter, taps: Sequence[_Line]) -> list[Expr]:
        """Return G g G' of 3 x 3 taps, point by point."""
        return _both(e, taps, self.taps)

    def gathered(self, e: TileEmitter, sums: Sequence[_Line]) -> list[Expr]:
        """Return A' m A of a square of points: the results of a tile."""
        return _both(e, sums, self.sums)


def _both(e: TileEmitter, square: Sequence[_Line], line: _Map) -> list[Expr]:
    """Apply a map to each column, then to each row of what came out."""
    columns = [line(e, [e.share(row[j]) for row in square]) for j in range(len(square))]
    rows = zip(*columns, strict=True)
    return [value for row in rows for value in line(e, row)]


def _spread_line(e: TileEmitter, d: _Line) -> list[Expr]:
    def pair(own: float, other: float) -> tuple[Expr, Expr]:
        even = e.share(d[4] - e.f32(other**2) * d[2])
        odd = e.share(d[3] - e.f32(other**2) * d[1])
        return e.share(even + e.f32(own) * odd), e.share(even - e.f32(own) * odd)

    whole, sum_ = e.f32((_A * _B) ** 2), e.f32(_A**2 + _B**2)
    first = e.share(d[4] - sum_ * d[2] + whole * d[0])
    last = e.share(d[5] - sum_ * d[3] + whole * d[1])
    return [first, *pair(_A, _B), *pair(_B, _A), last]


def _filter_line(e: TileEmitter, g: _Line) -> list[Expr]:
    def pair(own: float, other: float) -> tuple[Expr, Expr]:
        part = 1 / (2 * own**2 * (own**2 - other**2))
        even = e.share(e.f32(part) * g[0] + e.f32(part * own**2) * g[2])
        odd = e.share(e.f32(part * own) * g[1])
        return e.share(even + odd), e.share(even - odd)

    first = e.share(e.f32((_A * _B) ** -2) * g[0])
    return [first, *pair(_A, _B), *pair(_B, _A), g[2]]


def _gather_line(e: TileEmitter, m: _Line) -> list[Expr]:
    plus, minus = e.share(m[1] + m[2]), e.share(m[1] - m[2])
    more, less = e.share(m[3] + m[4]), e.share(m[3] - m[4])
    return [
        e.share(m[0] + plus + more),
        e.share(e.f32(_A) * minus + e.f32(_B) * less),
        e.share(e.f32(_A**2) * plus + e.f32(_B**2) * more),
        e.share(e.f32(_A**3) * minus + e.f32(_B**3) * less + m[5]),
    ]


def _spread_short(e: TileEmitter, d: _Line) -> list[Expr]:
    return [
        e.share(d[0] - d[2]),
        e.share(d[1] + d[2]),
        e.share(d[2] - d[1]),
        e.share(d[3] - d[1]),
    ]


def _filter_short(e: TileEmitter, g: _Line) -> list[Expr]:
    even, odd = e.share(e.f32(0.5) * (g[0] + g[2])), e.share(e.f32(0.5) * g[1])
    return [g[0], e.share(even + odd), e.share(even - odd), g[2]]


def _gather_short(e: TileEmitter, m: _Line) -> list[Expr]:
    return [e.share(m[0] + m[1] + m[2]), e.share(m[1] - m[2] + m[3])]


#: Tiles of 4 x 4 results, by 36 products in place of 144; of 2 x 2, by 16 in place of 36.
FOUR = Filtering(4, _spread_line, _filter_line, _gather_line)
TWO = Filtering(2, _spread_short, _filter_short, _gather_short)

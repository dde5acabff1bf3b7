"""The three linear maps of Winograd's F(4 x 4, 3 x 3), as steps on the lanes of a vector loop.

The points are 0, +-a, +-b and infinity. Rows of B' are the coefficients of the product of the
other points' factors, columns of A' the powers of the point, rows of G those of three
coefficients over what the two others make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

    from ..tile.emitter import TileEmitter

#: Points along a side, and of a tile; results along a side.
SIDE = 6
POINTS, STEP = SIDE * SIDE, SIDE - 2
# These are the most exact of those that were tried: sums of 128 channels are off by half as much
# as with the usual 1 and 2.
_A, _B = 0.75, 1.5

_Line = Sequence["Expr"]


def input_transform(e: TileEmitter, pixels: Sequence[_Line]) -> list[Expr]:
    """Return B' d B of 6 x 6 pixels, point by point."""
    return _both(e, pixels, _spread_line)


def filtered(e: TileEmitter, taps: Sequence[_Line]) -> list[Expr]:
    """Return G g G' of 3 x 3 taps, point by point."""
    return _both(e, taps, _filter_line)


def gathered(e: TileEmitter, sums: Sequence[_Line]) -> list[Expr]:
    """Return A' m A of 6 x 6 points: 4 x 4 results."""
    return _both(e, sums, _gather_line)


def _both(
    e: TileEmitter, square: Sequence[_Line], line: Callable[[TileEmitter, _Line], list[Expr]]
) -> list[Expr]:
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

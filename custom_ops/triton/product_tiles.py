"""Which tiles products of a row and constant matrices are computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .conv_tiles import power

if TYPE_CHECKING:
    from .product_form import Products

#: Up to this many columns a block has 4 of them, measured on an H100 (2026-11).
_NARROW = 2560
#: Elements of a row whose statistics are summed at once.
_STATISTICS = 4096


@dataclass(frozen=True)
class Strip:
    """A block's part of a product of one row: some columns, with all of their depth.

    Args:
        columns: Of the result.
        depth: Of one step.
        warps: Of 32 threads.
        statistics: Elements of the row that are summed at once for its norm.
    """

    columns: int
    depth: int
    warps: int
    statistics: int


def strip_of(form: Products) -> Strip:
    """Return the part of one block."""
    columns, depth = (4, 1024) if form.columns <= _NARROW else (8, 512)
    if len(form.weights) > 1:
        columns, depth = 16, 256
    most = power(form.depth)
    return Strip(columns, min(depth, most), 4, min(_STATISTICS, most))

"""Which tiles products of a row and constant matrices are computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .conv_tiles import power

if TYPE_CHECKING:
    from .product_form import Products

#: Up to this many columns a block has 4 of them, measured on an H100 (2026-11).
_NARROW = 2560
#: Rows of the smallest tile, and of narrow ones; blocks that a GPU has work with, parts of a depth
#: at most, and what is deep enough for four of them in any case.
_FEW, _NARROW_ROWS, _BLOCKS, _MOST_PARTS = 16, 64, 100, 8
_DEEP, _DEEP_PARTS = 768, 4
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


@dataclass(frozen=True)
class Parts:
    """A block's tile of a product, and its part of the depth.

    Args:
        rows: Of the tile.
        columns: Of the tile.
        depth: Of one step.
        each: Of a part, a multiple of a step.
        warps: Of 32 threads.
        stages: Steps that are loaded ahead.
    """

    rows: int
    columns: int
    depth: int
    each: int
    warps: int
    stages: int


def parts_of(rows: int, depth: int, columns: int) -> Parts:
    """Return the tiles and parts of a product with a norm behind, as measured on an H100."""
    height, width, step, stages = (16 if rows <= _FEW else 64), 32, 128, 4
    if rows > _NARROW_ROWS:
        width, step, stages = 64, 64, 5
    step = min(step, max(16, power(depth)))
    tiles = -(-rows // height) * -(-columns // width)
    steps = -(-depth // step)
    count = max(round(_BLOCKS / tiles), min(_DEEP_PARTS, depth // _DEEP))
    count = max(1, min(count, _MOST_PARTS, steps // 2))
    return Parts(height, width, step, -(-steps // count) * step, 4, stages)

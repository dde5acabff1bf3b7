"""The tiles of large-M matmuls with constant weights on a GPU.

Measured on an H100 (2026-11). A step of 64 waits a microsecond for its copy, by as many steps as
there is room for: where tiles are few, small ones with many stages, and two blocks side by side,
of which one computes while the other waits or finishes. Where there are many tiles, blocks go on
from one to the next, and one group finishes a tile while the other computes the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tile:
    """One way to cut a product.

    Args:
        rows: Of a tile.
        columns: Of a tile, of each of two matrices: a power of two.
        depth: Of a step.
        stages: Steps that there is room for, or, without copies of boxes, that are loaded ahead.
        groups: Of four warps that compute.
        is_separate: Whether each group has tiles of its own.
        is_early: Whether what the epilogue reads is read before the product.
        blocks: That take one tile after the other; 0 for a block a tile.
        limit: Registers that a thread may have at first, for several blocks side by side; None for
            what Triton finds.
        most_rows: Up to which it is the fastest, None for any number.
        band: Tiles below each other that are taken in before the next columns.
        rest: Additional columns of a tile, of one weight: a power of two, too.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    groups: int = 1
    is_separate: bool = False
    is_early: bool = False
    blocks: int = 0
    limit: int | None = None
    most_rows: int | None = None
    band: int = 8
    rest: int = 0

    @property
    def width(self) -> int:
        """All columns of a tile."""
        return self.columns + self.rest


#: Without copies of boxes.
PLAIN, PLAIN_PAIR = Tile(64, 128, 32, 3), Tile(64, 64, 32, 3)
#: Multiprocessors of an H100.
PROCESSORS = 132
_SMALL = Tile(64, 64, 64, 12, is_early=True)
_MIDDLE = Tile(64, 128, 64, 8, is_early=True)
_BESIDE = Tile(64, 128, 64, 4, is_early=True, limit=128)
#: One tile a multiprocessor where two of those side by side would not do: deep ones are ahead.
_DEEP = Tile(64, 128, 64, 6, is_early=True, rest=64)
#: What is deep.
LEAST_DEPTH = 1536
#: Clusters of two blocks whose columns are copied once were tried: 135.0 us where this takes 136.1
#: (16,384 x 768 x 3,072 and GELU), and slower from 6,304 rows down.
_LARGE = Tile(128, 128, 64, 5, 2, is_separate=True, blocks=PROCESSORS)
#: Where one additional tensor is read, and, with more registers for them, several.
_WIDE = Tile(128, 256, 64, 3, 2, blocks=PROCESSORS)
SHARED = Tile(128, 128, 64, 5, 2, blocks=PROCESSORS)
_PAIR = Tile(128, 64, 64, 5, 2, is_separate=True, blocks=PROCESSORS)
_LARGE_PAIR = Tile(128, 128, 64, 4, 2, blocks=PROCESSORS)
#: Rows from which on larger tiles are ahead for two matrices, and where these are large: 2,048
#: rows of 14,336 x 4,096 take 617 us with them and 639 without, on an H200.
_MOST_OF_PAIR, _LARGE_MATRIX, _MOST_OF_LARGE_PAIR = 8192, 14336 * 4096, 1536


def tiles_of(
    rows: int | None,
    columns: int,
    matrices: int,
    whole: int,
    depth: int = 0,
    count: int | None = 1,
) -> tuple[Tile, ...]:
    """Return the tiles for each range of rows, the last one for any number of them.

    Args:
        rows: M; None where it is dynamic.
        columns: Of the result.
        matrices: One or two.
        whole: Additional operands of the epilogue of the result's size.
        depth: Of a product.
        count: Of such products; None where known at run time only.
    """
    if matrices > 1:
        most = _MOST_OF_LARGE_PAIR if columns * depth >= _LARGE_MATRIX else _MOST_OF_PAIR
        found = [replace(_PAIR, most_rows=most), _LARGE_PAIR]
    else:
        # One tile a multiprocessor, or two side by side.
        deep = [(_DEEP, 1)] if rows is not None and depth >= LEAST_DEPTH else []
        few = [(_SMALL, 1), (_MIDDLE, 1), *deep, (_BESIDE, 2)] if count is not None else []
        found = [
            replace(tile, most_rows=_rows_of(tile, tiles * PROCESSORS, columns, count or 1))
            for tile, tiles in few
        ]
        if count != 1 and all((one.most_rows or 0) < _BESIDE.rows for one in found):
            # Of each of them half a larger tile would be empty.
            found.append(replace(_BESIDE, most_rows=_BESIDE.rows))
        found.append((_LARGE, _WIDE, SHARED)[min(whole, 2)])
    ranges = [item for item in found if item.most_rows is None or item.most_rows > 0]
    if rows is None:
        return tuple(ranges)
    return (
        next(range_ for range_ in ranges if range_.most_rows is None or rows <= range_.most_rows),
    )


def _rows_of(tile: Tile, most: int, columns: int, count: int) -> int:
    """Return the rows of this many products for which there are no more tiles than `most`."""
    return most // (count * -(-columns // tile.width)) * tile.rows

"""Matrices of products in float32 as their kernels read them: panels of columns.

A matrix is packed once: when a model is optimized, which then has it in no other form, or when a
session with `OrtkitExecutionProvider` is made. Within a panel a row's columns lie next to each
other, and the rows follow one another, so that a kernel of any level can read a panel from one end
to the other. How wide panels are the level says.
"""

from __future__ import annotations

from ortkit.kernels.prepack import Array, Prepack

#: Columns of a panel, vectors of 16. Tiles of each are as fast where K is small.
_WIDTHS = (48, 64, 32)
#: Of one half, where panels have columns of two.
_HALF_WIDTHS = (32, 16)
#: From this K on tiles of 48 columns are never slower, and for some K they are faster: Zen 4 takes
#: 1.07 times as long with panels of 64 for K of 1280 (AMD EPYC, 128 rows, 2026-11-28).
_DEEP, _DEEP_WIDTH = 1024, 48
#: Rows of x that are a multiple of 4 KiB apart share a set of the first level of cache. There
#: Zen 4 takes 1.19 times as long with panels of 64 or 32, whatever the columns.
_ALIASED = 1024
#: The part of a matrix that panels may have too many of columns for that.
_PADDING, _ALIASED_PADDING = 1 / 16, 1 / 8


def layout(depth: int, columns: int, width: int = 0) -> Prepack:
    """Return panels of `width` columns each.

    By default they are of those that leave the fewest over, or of 48 where K is large: see
    `_DEEP` and `_ALIASED`.
    """
    width = width or _width(depth, columns)
    count = -(-columns // width)
    whole = depth, count * width
    return Prepack((count, depth, width), (1, 0, 2), whole, (depth, columns), axes=(1,))


def gated_layout(depth: int, columns: int) -> Prepack:
    """Return panels of a matrix whose two halves of columns are multiplied by each other.

    A panel [K, 2, width] has as many columns of the first half as of the second one. `columns`
    counts both halves.
    """
    half = columns // 2
    width = min(_HALF_WIDTHS, key=lambda number: -half % number)
    count = -(-half // width)
    return Prepack(
        (count, depth, 2, width), (1, 2, 0, 3), (depth, 2, count * width), (depth, 2, half),
        axes=(2,), then=(("Reshape", (depth, columns)),),
    )  # fmt: skip


def _width(depth: int, columns: int) -> int:
    padding = _PADDING if depth % _ALIASED else _ALIASED_PADDING
    if depth >= _DEEP and -columns % _DEEP_WIDTH <= columns * padding:
        return _DEEP_WIDTH
    return min(_WIDTHS, key=lambda number: -columns % number)


def panels(matrix: Array, width: int = 0) -> Array:
    """Return [depth, columns] packed in panels of `width` columns, a view where that can be.

    Columns that the last panel has too many are 0.
    """
    depth, columns = matrix.shape
    return layout(depth, columns, width).pack(matrix)

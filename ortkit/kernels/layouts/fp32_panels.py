"""Matrices of products in float32 as their kernels read them: panels of columns.

A matrix is packed once: when a model is optimized, which then has it in no other form, or when a
session with `OrtkitExecutionProvider` is made. Within a panel a row's columns lie next to each
other, and the rows follow one another, so that a kernel reads a panel from one end to the other,
whatever vectors its processor has.
"""

from __future__ import annotations

from ortkit.kernels.prepack import Array, Prepack

#: Columns of a panel, vectors of 16: tiles of each are as fast, but for a large K on Zen 4. There
#: panels of 48 take 0.7 to 0.85 times as long as those of 64 (AMD EPYC, 2026-11-27).
_WIDTHS = (48, 64, 32)
_DEEP, _DEEP_WIDTH = 2048, 48
#: The part of a matrix that panels may have too many of columns for that.
_PADDING = 1 / 16


def layout(depth: int, columns: int, width: int = 0) -> Prepack:
    """Return panels of `width` columns each.

    By default they are of those that leave the fewest over, or of 48 where K is large.
    """
    width = width or _width(depth, columns)
    count = -(-columns // width)
    whole = depth, count * width
    return Prepack((count, depth, width), (1, 0, 2), whole, (depth, columns), axes=(1,))


def _width(depth: int, columns: int) -> int:
    if depth >= _DEEP and -columns % _DEEP_WIDTH <= columns * _PADDING:
        return _DEEP_WIDTH
    return min(_WIDTHS, key=lambda one: -columns % one)


def panels(matrix: Array) -> Array:
    """Return [depth, columns] packed, a view where that can be.

    Columns that the last panel has too many are 0.
    """
    return layout(*matrix.shape).pack(matrix)

"""The transpose of squares of 16 or 8 vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Emitter, Expr


def transposed(e: Emitter, rows: Sequence[Expr]) -> list[Expr]:
    """Return the columns of 16 vectors of 16 float32, or of 8 vectors in both of their halves.

    In four stages of 16 shuffles, or in three of 8. Without a fence between them LLVM makes each
    column out of 16 vectors, which takes 240.
    """
    rows, size = list(rows), 1
    while size < len(rows):
        swapped = list(rows)
        for upper in (n for n in range(len(rows)) if not n & size):
            lower = upper + size
            first = [n if not n & size else VECTOR + n - size for n in range(VECTOR)]
            second = [n + size if not n & size else VECTOR + n for n in range(VECTOR)]
            for target, lanes in ((upper, first), (lower, second)):
                fenced = e.fence(e.shuffled(rows[upper], rows[lower], lanes))
                swapped[target] = e.share_row(fenced, VECTOR, "float32")
        rows, size = swapped, size * 2
    return rows

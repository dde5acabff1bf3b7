"""Matrices of int8 as the kernels of integer products read them: panels of columns.

Four neighbours along K of a column lie together, which one instruction multiplies and adds up
(VNNI), and of which tiles are made (AMX). Panels lie one after another.
"""

from __future__ import annotations

from ortkit.kernels.prepack import Prepack

#: Elements along K that lie together, and columns of a panel: two vectors of 16.
GROUP, WIDTH = 4, 32


def layout(depth: int, columns: int) -> Prepack:
    """Return the panels of an int8 matrix [depth, columns]; what fills the last ones up is 0."""
    groups, panels = -(-depth // GROUP), -(-columns // WIDTH)
    whole = groups * GROUP, panels * WIDTH
    return Prepack((panels, groups, WIDTH, GROUP), (1, 3, 0, 2), whole, (depth, columns))

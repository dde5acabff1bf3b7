"""In which order a few rows stand for a whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def row_order(batch: int, rows: int) -> np.ndarray:
    """Return which of the few rows stands at each row of the batch, int64 [batch].

    The order has no period: a kernel that computes a tile of rows again in place of the next one
    gives other results, whatever the tile's size is.
    """
    order = np.random.default_rng(0).integers(0, rows, batch)
    order[:rows] = np.arange(rows)
    return order


def copies_of(order: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yield places of the few rows in the batch, int64 [rows], until each place was named.

    Args:
        order: As `row_order` returns it.
        rows: How many rows stand for the batch.
    """
    positions = [np.flatnonzero(order == row) for row in range(rows)]
    for turn in range(max(len(each) for each in positions)):
        yield np.array([each[turn % len(each)] for each in positions])

"""Errors of an output row by row, each over the scale that its row was computed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortkit.verify.tolerances import PEAK_PART, SCALE_FLOOR, SENTINEL_FACTOR

#: Shorter rows are joined: a single element says nothing of the scale it was computed at.
_MIN_ROW = 8
#: Elements compared at a time: their float64 copies stay in a processor's cache.
_BLOCK = 1 << 16


def row_errors(expected: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's largest error over its scale, and that scale: [rows, n] twice -> [rows].

    The error is infinite where one is NaN or infinite and the other is another number.

    Args:
        expected: The reference.
        actual: The values that are judged.
    """
    if not expected.size:
        return np.zeros(0), np.zeros(0)
    parts = []
    for want, got in zip(_blocks(expected), _blocks(actual), strict=True):
        rows = _Rows(want)
        parts.append((*rows.errors(got), rows.scale))
    errors, outliers, scales = (np.concatenate(part) for part in zip(*parts, strict=True))
    # The peak is of ordinary rows: a row of -1e9 says nothing about the others.
    peak = scales[scales <= SENTINEL_FACTOR * np.median(scales)].max(initial=0.0)
    scales = np.asarray(np.maximum(scales, max(PEAK_PART * peak, SCALE_FLOOR)))
    return np.asarray(np.maximum(errors / scales, outliers)), scales


def row_spread(expected: np.ndarray, runs: Sequence[np.ndarray], scales: np.ndarray) -> np.ndarray:
    """Return how far runs with perturbed values move each row at most, over its scale.

    The measure is that of `row_errors`. A row in which a run has NaN or infinity and `expected`
    has not has an infinite spread. A row with next to nothing but 0 is taken to move at least as
    far as half of the rows do: a Relu has cut off what would tell.

    Args:
        expected: Rows, as [rows, n].
        runs: The same in each run.
        scales: Of the rows, as `row_errors` returns them.
    """
    spread, outliers = np.zeros(len(expected)), np.zeros(len(expected))
    at = 0
    for want, *blocks in zip(_blocks(expected), *map(_blocks, runs), strict=True):
        rows, part = _Rows(want), slice(at, at + len(want))
        for got in blocks:
            errors, relative = rows.errors(got)
            spread[part] = np.maximum(spread[part], errors)
            outliers[part] = np.maximum(outliers[part], relative)
        at += len(want)
    if not len(spread):
        return spread
    is_sparse = (expected != 0).sum(axis=1) < _MIN_ROW
    spread = np.where(is_sparse, np.maximum(spread, np.median(spread)), spread)
    return np.asarray(np.maximum(spread / scales, outliers))


def as_rows(array: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the leading axes, and the array as [rows, row length]."""
    axis = array.ndim
    length = 1
    while axis > 0 and length < _MIN_ROW:
        axis -= 1
        length *= array.shape[axis]
    leading = array.shape[:axis]
    return leading, array.reshape(int(np.prod(leading)), length)


class _Rows:
    """Rows of a reference, as [rows, n], with what errors in them are compared with."""

    def __init__(self, want: np.ndarray) -> None:
        self._want = want
        magnitude = np.abs(want)
        largest = magnitude.max(axis=1)
        if not np.isfinite(largest).all():
            magnitude[~np.isfinite(want)] = 0.0
            largest = magnitude.max(axis=1)
        doubtful = _may_have_sentinels(magnitude, largest)
        few = magnitude[doubtful].astype(np.float64)
        median = np.median(few, axis=1, keepdims=True) if len(few) else few
        at, column = np.nonzero((few > SENTINEL_FACTOR * median) & (median > 0))
        self._sentinels = doubtful[at], column
        self._magnitudes = few[at, column]
        few[at, column] = 0.0
        self.scale = largest.astype(np.float64)
        self.scale[doubtful] = few.max(axis=1)

    def errors(self, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return per row the largest error, and the largest relative error of sentinels."""
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.subtract(self._want, got, dtype=np.float64)
        np.abs(error, out=error)
        relative = np.zeros(len(error))
        worst = error.max(axis=1)
        if len(self._sentinels[0]) == 0 and np.isfinite(worst).all():
            return worst, relative
        unclear = np.nonzero(~np.isfinite(error))
        if len(unclear[0]):
            want, found = self._want[unclear], got[unclear]
            same = (want == found) | (np.isnan(want) & np.isnan(found))
            error[unclear] = np.where(same, 0.0, np.inf)
        np.maximum.at(relative, self._sentinels[0], error[self._sentinels] / self._magnitudes)
        error[self._sentinels] = 0.0
        return error.max(axis=1), relative


def _may_have_sentinels(magnitude: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Return the rows whose median is needed to tell whether they have sentinels.

    Where more than half of a row is at least `1 / SENTINEL_FACTOR` of its largest, so is the
    median, and there are none. To count is much cheaper than to sort.

    Args:
        magnitude: Finite, as [rows, n].
        largest: Of each row.
    """
    with np.errstate(over="ignore"):
        is_near = magnitude * SENTINEL_FACTOR >= largest[:, None]
    return np.nonzero(np.count_nonzero(is_near, axis=1) <= magnitude.shape[1] // 2)[0]


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield parts of [rows, n] as float32 or float64; none where there is no element."""
    if rows.size == 0:
        return
    step = max(1, _BLOCK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step]
        yield block if block.dtype in (np.float32, np.float64) else block.astype(np.float64)

"""Errors of an output row by row, each over the scale that its row was computed at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.verify.tolerances import (
    OWN_ERROR_FACTOR,
    OWN_ERROR_LIMIT,
    SCALE_FLOOR,
    SENTINEL_FACTOR,
)

#: Shorter rows are joined: a single element says nothing of the scale it was computed at.
_MIN_ROW = 8
#: Elements compared at a time, to keep float64 copies of large outputs small.
_BLOCK = 1 << 20

Limit = Callable[[str], float]
"""How many epsilons an output of a float dtype may be off."""


@dataclass(frozen=True)
class Bounds:
    """What floats are held to."""

    limit: Limit
    least_part: float
    """Rows smaller than this part of the largest magnitude are judged at this part."""
    least_sentinel: float = 0.0
    """Smaller elements are no sentinels, and rows of them are like the others."""


def row_errors(
    expected: np.ndarray,
    actual: np.ndarray,
    bounds: Bounds,
    roundings: np.ndarray | None = None,
    unit: float = 1.0,
) -> np.ndarray:
    """Return each row's largest error over its scale: [rows, n] twice -> [rows].

    Args:
        expected: The reference.
        actual: What is judged.
        bounds: How small a scale may be.
        roundings: By row, what roundings in the reference's place move; see `row_roundings`.
        unit: The part of its scale that a row may be off. With `roundings` a row's scale is at
            least the one at which so many times what they move is allowed.
    """
    errors, outliers, scales = _measured(expected, actual, bounds.least_sentinel)
    own = 0.0 if roundings is None else _own_scales(roundings, scales, unit)
    scales = _bounded(scales, bounds, own)
    result: np.ndarray = np.maximum(errors / scales, outliers)
    return result


def row_errors_and_scales(
    expected: np.ndarray, actual: np.ndarray, bounds: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's largest error over its scale, and that scale: [rows, n] twice -> [rows].

    The error is infinite where one is NaN or infinite and the other is another number.
    """
    errors, outliers, scales = _measured(expected, actual, bounds.least_sentinel)
    scales = _bounded(scales, bounds, 0.0)
    return np.maximum(errors / scales, outliers), scales


def _measured(
    expected: np.ndarray, actual: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by row the largest error, the largest relative error of sentinels, and the scale."""
    pairs = zip(_blocks(expected), _blocks(actual), strict=True)
    parts = [_measure(want, got, least) for want, got in pairs]
    if not parts:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    errors, scales, outliers = (np.concatenate(part) for part in zip(*parts, strict=True))
    return errors, outliers, scales


def _bounded(scales: np.ndarray, bounds: Bounds, own: np.ndarray | float) -> np.ndarray:
    """Return scales no smaller than what is left of ordinary rows that cancel."""
    if not scales.size:
        return scales
    # The peak is of ordinary rows too: a row of -1e9 says nothing about the others.
    is_ordinary = scales <= max(SENTINEL_FACTOR * np.median(scales), bounds.least_sentinel)
    peak = scales[is_ordinary].max(initial=0.0)
    least = max(bounds.least_part * peak, SCALE_FLOOR)
    return np.asarray(np.maximum(np.maximum(scales, own), least))


def row_spread(expected: np.ndarray, runs: Sequence[np.ndarray]) -> np.ndarray:
    """Return how far runs with perturbed values move each row at most: [rows, n] each -> [rows].

    A row in which a run has NaN or infinity and `expected` has not has an infinite spread.
    """
    spread = np.zeros(len(expected))
    for run in runs:
        at = 0
        for want, got in zip(_blocks(expected), _blocks(run), strict=True):
            errors = _measure(want, got, 0.0)[0]
            spread[at : at + len(want)] = np.maximum(spread[at : at + len(want)], errors)
            at += len(want)
    return spread


def row_roundings(expected: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Return what roundings move in each row at most: [rows, n] twice -> [rows].

    A row that is next to nothing but 0 is taken to move as far as the others usually do: a Relu
    has cut off what would tell.
    """
    moved, is_telling = [np.zeros(0)], [np.zeros(0, bool)]
    for want, got in zip(_blocks(expected), _blocks(rounded), strict=True):
        errors = _measure(want, got, 0.0)[0]
        moved.append(np.where(np.isfinite(errors), errors, 0.0))
        is_telling.append(((want != 0) | (got != 0)).sum(axis=1) >= _MIN_ROW)
    result, tells = np.concatenate(moved), np.concatenate(is_telling)
    usual = np.median(result[tells]) if tells.any() else 0.0
    return np.asarray(np.where(tells, result, np.maximum(result, usual)))


def as_rows(array: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the leading axes, and the array as [rows, row length]."""
    axis = array.ndim
    length = 1
    while axis > 0 and length < _MIN_ROW:
        axis -= 1
        length *= array.shape[axis]
    leading = array.shape[:axis]
    return leading, array.reshape(int(np.prod(leading)), length)


def _own_scales(roundings: np.ndarray, scales: np.ndarray, unit: float) -> np.ndarray:
    """Return the scales that rows need for what roundings move: [rows] twice -> [rows]."""
    nonzero = scales[scales > 0]
    if not nonzero.size:
        return np.zeros_like(scales)
    most = nonzero[nonzero <= SENTINEL_FACTOR * np.median(nonzero)].max()
    return np.asarray(np.minimum(OWN_ERROR_FACTOR * roundings, OWN_ERROR_LIMIT * most) / unit)


def _measure(
    want: np.ndarray, got: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per row of [rows, n]: largest error, scale, largest relative error of sentinels."""
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    finite = np.isfinite(want) & np.isfinite(got)
    magnitude = np.where(np.isfinite(want), np.abs(want), 0.0)
    median = np.median(magnitude, axis=1, keepdims=True)
    is_sentinel = (magnitude > np.maximum(SENTINEL_FACTOR * median, least)) & (median > 0)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.where(finite, np.abs(want - got), np.inf))
    scale = np.where(is_sentinel, 0.0, magnitude).max(axis=1)
    relative = np.divide(error, magnitude, out=np.zeros_like(error), where=is_sentinel)
    return np.where(is_sentinel, 0.0, error).max(axis=1), scale, relative.max(axis=1)


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield parts of [rows, n] as float64; none where there is no element."""
    if rows.size == 0:
        return
    step = max(1, _BLOCK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        yield rows[start : start + step].astype(np.float64)

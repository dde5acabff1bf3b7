"""Means, percentiles and intervals of many groups of times at once."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.diff_interval import CONFIDENCE, lower_rank
from ortkit.runtime.profiling.result import Times

Values = npt.NDArray[np.float64]
_P95 = 0.95
#: Of more values the rank is that of the normal distribution, whose 97.5 % point is _Z.
_MANY, _Z = 1000, 1.959964


def times_of(values: npt.ArrayLike) -> Times:
    """Describe one group of times, of which there is at least one."""
    given = np.asarray(values, np.float64)
    (found,) = grouped(given, np.zeros(len(given), np.int64), 1)
    return found


def grouped(values: Values, group: npt.NDArray[np.int64], groups: int) -> list[Times]:
    """Describe each group of times; percentiles lie between neighbours, as numpy's do.

    Args:
        values: [n] microseconds.
        group: [n] which group each is of; no group is empty.
        groups: How many there are.
    """
    order = np.lexsort((values, group))
    ordered = values[order]
    counts = np.bincount(group, minlength=groups)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    last = first + counts - 1
    means = np.bincount(group, weights=values, minlength=groups) / counts
    medians = _percentile(ordered, first, counts, 0.5)
    p95 = _percentile(ordered, first, counts, _P95)
    found = []
    for at in range(groups):
        rank = _rank(int(counts[at]))
        found.append(
            Times(
                count=int(counts[at]),
                mean_us=float(means[at]),
                least_us=float(ordered[first[at]]),
                median_us=float(medians[at]),
                p95_us=float(p95[at]),
                most_us=float(ordered[last[at]]),
                low_us=None if rank is None else float(ordered[first[at] + rank]),
                high_us=None if rank is None else float(ordered[last[at] - rank]),
            )
        )
    return found


def typical(values: npt.ArrayLike) -> Values:
    """Return the mean of the middle half along the last axis.

    Runs that another process disturbed do not count, and it is finer than the whole
    microseconds of a trace, unlike a median.

    Args:
        values: [..., n]
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    count = ordered.shape[-1]
    cut = count // 4
    result: Values = ordered[..., cut : count - cut].mean(axis=-1)
    return result


def _percentile(
    ordered: Values, first: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], part: float
) -> Values:
    rank = part * (counts - 1)
    below = np.floor(rank).astype(np.int64)
    above = np.minimum(below + 1, counts - 1)
    weight = rank - below
    result: Values = (1 - weight) * ordered[first + below] + weight * ordered[first + above]
    return result


@cache
def _rank(count: int) -> int | None:
    if count <= _MANY:
        return lower_rank(count, CONFIDENCE)
    # The binomial distribution's normal limit, one rank on the safe side.
    return int((count - _Z * math.sqrt(count)) / 2) - 1

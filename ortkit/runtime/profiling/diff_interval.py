"""Intervals of medians by order statistics: no assumption on how times are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

Times = npt.NDArray[np.floating] | npt.NDArray[np.integer]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Medians:
    """Medians with their intervals, all of the same shape."""

    median: Numbers
    low: Numbers | None
    """None if there are too few values for the confidence."""
    high: Numbers | None


def median_interval(times: Times, *, confidence: float = CONFIDENCE) -> Medians:
    """Return the median along the last axis and where the true one lies.

    Args:
        times: [..., n], n > 0.
        confidence: Of the interval, between 0 and 1. The smallest interval between two of the
            sorted values is taken that has at least it.

    Source:
        The number of values below the true median is binomial(n, 1/2): David and Nagaraja,
        "Order Statistics" (3rd edition, 2003), section 7.1.
    """
    ordered = np.sort(np.asarray(times, np.float64), axis=-1)
    median = np.median(ordered, axis=-1)
    count = ordered.shape[-1]
    rank = lower_rank(count, confidence)
    if rank is None:
        return Medians(median, None, None)
    return Medians(median, ordered[..., rank], ordered[..., count - 1 - rank])


def lower_rank(count: int, confidence: float) -> int | None:
    """Return which of `count` sorted values, from 0, bounds the median from below.

    None: even the smallest does not, with that confidence.
    """
    allowed = (1 - confidence) / 2
    below, rank = 0.0, None
    for at in range((count + 1) // 2):
        # The interval misses the median if at most `at` values are below it, or above it.
        below += math.exp(_log_choose(count, at) - count * math.log(2))
        if below > allowed:
            break
        rank = at
    return rank


def _log_choose(count: int, of: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(of + 1) - math.lgamma(count - of + 1)

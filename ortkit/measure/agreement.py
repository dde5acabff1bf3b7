"""Measurements that are repeated, each part for itself: until two agree, or for a median."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, quantiles
from typing import TypeAlias

#: A part is measured until two of its results differ by no more than this part of them.
MOST_NOISE = 0.15
MOST_REPETITIONS = 4
#: Measurements for a median: of each part, and of those that stay doubtful.
USUAL_MEASUREMENTS, MOST_MEASUREMENTS = 5, 9
_LEAST_FOR_MEDIAN = 3

Results: TypeAlias = Mapping[str, Sequence[float]]
"""By part, the numbers that one measurement has of it."""


@dataclass(frozen=True)
class Agreed:
    """The mean of the two results that agree best, or the median of all.

    Args:
        values: The numbers of a part.
        noise: The largest difference of a number of the two, as a part of the larger. Of a median
            half of what the middle half of the results extends over, as a part of the median.
    """

    values: tuple[float, ...]
    noise: float


def agreed(results: Sequence[Sequence[float]]) -> Agreed | None:
    """Return what the two results say that agree best; None if less than two are positive.

    A result that is not positive agrees with none: it is a difference of disturbed times.
    """
    positive = [each for each in results if min(each) > 0]
    pairs = [list(zip(*two, strict=True)) for two in combinations(positive, 2)]
    found = [
        Agreed(tuple((a + b) / 2 for a, b in pair), max(abs(a - b) / max(a, b) for a, b in pair))
        for pair in pairs
    ]
    return min(found, key=lambda one: one.noise, default=None)


def repeated(
    parts: Sequence[str], measure: Callable[[Sequence[str]], Results], most_noise: float
) -> dict[str, Agreed | None]:
    """Measure parts until two results of each agree, at most `MOST_REPETITIONS` times.

    Args:
        parts: What to measure.
        measure: Called with the parts of which no two results agree yet. If it returns nothing,
            no part is measured again.
        most_noise: How much two results may differ by that agree.

    Returns:
        By part what was found; None where less than two results are positive.
    """
    results: dict[str, list[Sequence[float]]] = {name: [] for name in parts}
    found: dict[str, Agreed | None] = dict.fromkeys(parts)
    left = list(parts)
    for _ in range(MOST_REPETITIONS):
        new = measure(left) if left else {}
        if not new:
            break
        for name, values in new.items():
            results[name].append(values)
            found[name] = agreed(results[name])
        left = [name for name in left if (one := found[name]) is None or one.noise > most_noise]
    return found


def middle(results: Sequence[Sequence[float]]) -> Agreed | None:
    """Return the median of the positive results; None if there are less than three.

    What differs between processes, such as where memory is, is in all results of one process. So
    two that agree may both be far from what is usual.
    """
    positive = [each for each in results if min(each) > 0]
    if len(positive) < _LEAST_FOR_MEDIAN:
        return None
    values = tuple(median(numbers) for numbers in zip(*positive, strict=True))
    spreads = (_half_of_middle(numbers) for numbers in zip(*positive, strict=True))
    noise = max(spread / value for spread, value in zip(spreads, values, strict=True))
    return Agreed(values, noise)


def _half_of_middle(numbers: Sequence[float]) -> float:
    first, _, third = quantiles(numbers, method="inclusive")
    return (third - first) / 2


def medians(
    parts: Sequence[str],
    measure: Callable[[Sequence[str]], Results],
    is_doubtful: Callable[[Agreed], bool],
) -> dict[str, Agreed | None]:
    """Measure parts for their medians, those that are doubtful up to `MOST_MEASUREMENTS` times.

    Args:
        parts: What to measure.
        measure: Called with parts. If it returns nothing, no part is measured again.
        is_doubtful: Says whether a median is not good enough.

    Returns:
        By part what was found; None where less than three results are positive.
    """
    results: dict[str, list[Sequence[float]]] = {name: [] for name in parts}
    left = list(parts)
    for count in range(1, MOST_MEASUREMENTS + 1):
        new = measure(left) if left else {}
        if not new:
            break
        for name, values in new.items():
            results[name].append(values)
        if count >= USUAL_MEASUREMENTS:
            found = {name: middle(results[name]) for name in left}
            left = [name for name, one in found.items() if one is None or is_doubtful(one)]
    return {name: middle(each) for name, each in results.items()}

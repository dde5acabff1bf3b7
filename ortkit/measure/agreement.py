"""Measurements that are repeated until two of them agree, each part for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

#: A part is measured until two of its results differ by no more than this part of them.
MOST_NOISE = 0.15
MOST_REPETITIONS = 4

Results: TypeAlias = Mapping[str, Sequence[float]]
"""By part, the numbers that one measurement has of it."""


@dataclass(frozen=True)
class Agreed:
    """The mean of the two results that agree best.

    Args:
        values: The numbers of a part.
        noise: The largest difference of a number of the two, as a part of the larger.
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

"""Which products take their form: as many as gain, within what the outputs may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Points of the curve that are measured first; where the budget lies between two, all between.
_POINTS = 16
#: Smaller errors are as good as none when products are ordered.
_LEAST_HARM = 1e-9

Measure = Callable[[Sequence[Sequence[bool]]], Sequence[float]]
"""Given flags of all products, several at once, the largest error of any output with each."""


@dataclass(frozen=True)
class Trial:
    """One product in its form, as measured."""

    harm: float
    """The error of the outputs when it alone takes its form."""
    saved_us: float | None
    """What that saves; None if it was not timed, and then it counts like the mean of others."""


@dataclass(frozen=True)
class Point:
    """One point of the trade-off: the least harmful products take their form."""

    lowered: int
    error: float
    saved_us: float | None
    """Of those that were timed; None if none was."""


@dataclass(frozen=True)
class Choice:
    """The products that take their form, and what the others would have cost."""

    flags: tuple[bool, ...]
    order: tuple[int, ...]
    """The candidates, in the order in which they would be lowered."""
    curve: tuple[Point, ...]
    """By how many are lowered; the first is none."""

    @property
    def error(self) -> float:
        """The error with the chosen flags."""
        return next(point.error for point in self.curve if point.lowered == sum(self.flags))


def order_of(trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the products that gain, the one that harms least for what it saves first.

    Errors add up like the sides of right-angled triangles, so it is squares that are weighed.
    """
    gaining = [i for i, item in enumerate(trials) if item.saved_us is None or item.saved_us > 0]
    timed = [one.saved_us for one in trials if one.saved_us is not None and one.saved_us > 0]
    usual = sum(timed) / len(timed) if timed else 1.0

    def price(index: int) -> float:
        trial = trials[index]
        harm = max(trial.harm, _LEAST_HARM) if math.isfinite(trial.harm) else math.inf
        return harm * harm / (usual if trial.saved_us is None else trial.saved_us)

    return tuple(sorted(gaining, key=price))


def choose(trials: Sequence[Trial], max_error: float, measure: Measure) -> Choice:
    """Lower as many products as the budget allows, as measured together.

    Args:
        trials: One for each product.
        max_error: What the error of any output may be.
        measure: Called twice at most.
    """
    order = order_of(trials)
    total = len(order)
    known = _measured(order, trials, _spread(total), measure)
    first_bad = min((n for n, error in known.items() if error > max_error), default=None)
    if first_bad is not None:
        below = max(n for n in known if n < first_bad) if first_bad else 0
        between = [n for n in range(below + 1, first_bad) if n not in known]
        known |= _measured(order, trials, between, measure)
    fitting = [n for n, error in known.items() if error <= max_error]
    lowered = max(fitting, default=0)
    curve = tuple(Point(n, known[n], _saved(order[:n], trials)) for n in sorted(known))
    return Choice(_flags(order[:lowered], len(trials)), order, curve)


def without_next(choice: Choice, count: int) -> Choice:
    """Return a choice with `count` products fewer, the most harmful ones returned."""
    lowered = max(0, sum(choice.flags) - count)
    flags = _flags(choice.order[:lowered], len(choice.flags))
    return Choice(flags, choice.order, choice.curve)


def _measured(
    order: Sequence[int], trials: Sequence[Trial], counts: Sequence[int], measure: Measure
) -> dict[int, float]:
    wanted = [n for n in counts if n > 0]
    found = dict.fromkeys((n for n in counts if n == 0), 0.0)
    if wanted:
        errors = measure([_flags(order[:n], len(trials)) for n in wanted])
        found |= dict(zip(wanted, errors, strict=True))
    return found


def _spread(total: int) -> list[int]:
    """Return up to `_POINTS` counts from none to all."""
    if total < _POINTS:
        return list(range(total + 1))
    return sorted({round(total * i / (_POINTS - 1)) for i in range(_POINTS)})


def _flags(lowered: Sequence[int], count: int) -> tuple[bool, ...]:
    chosen = set(lowered)
    return tuple(index in chosen for index in range(count))


def _saved(lowered: Sequence[int], trials: Sequence[Trial]) -> float | None:
    saved = [trials[index].saved_us for index in lowered]
    known = [item for item in saved if item is not None]
    return sum(known) if known or not saved else None

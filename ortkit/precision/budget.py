"""Which products take their form: as many as gain, within what the outputs may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    """Steps of the order: each lowers a product, or replaces its form by another."""
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
    replaces: Mapping[int, int] = field(default_factory=dict)
    """By candidate, another form of its product that it takes the place of."""

    @property
    def taken(self) -> int:
        """How many steps of the order are taken."""
        chosen = [index for index in self.order if self.flags[index]]
        return len(chosen) + sum(self.replaces.get(index) in self.order for index in chosen)

    @property
    def error(self) -> float:
        """The error with the chosen flags."""
        return next(point.error for point in self.curve if point.lowered == self.taken)


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


def choose(
    trials: Sequence[Trial],
    max_error: float,
    measure: Measure,
    order: Sequence[int] | None = None,
    replaces: Mapping[int, int] | None = None,
) -> Choice:
    """Lower as many products as the budget allows, as measured together.

    Args:
        trials: One for each candidate.
        max_error: What the error of any output may be.
        measure: Called twice at most.
        order: Of the candidates; None: by `order_of`.
        replaces: By candidate, an earlier one of the order that it takes the place of.
    """
    none = Choice(
        (False,) * len(trials), order_of(trials) if order is None else tuple(order), (),
        replaces or {},
    )  # fmt: skip
    total = len(none.order)
    known = _measured(none, _spread(total), measure)
    first_bad = min((n for n, error in known.items() if error > max_error), default=None)
    if first_bad is not None:
        below = max(n for n in known if n < first_bad) if first_bad else 0
        between = [n for n in range(below + 1, first_bad) if n not in known]
        known |= _measured(none, between, measure)
    fitting = [n for n, error in known.items() if error <= max_error]
    saved = [trial.saved_us for trial in trials]
    curve = tuple(Point(n, known[n], _saved(flags_after(none, n), saved)) for n in sorted(known))
    return replace(none, flags=flags_after(none, max(fitting, default=0)), curve=curve)


def without_next(choice: Choice, count: int) -> Choice:
    """Return a choice with `count` steps fewer, the most harmful ones returned."""
    return replace(choice, flags=flags_after(choice, max(0, choice.taken - count)))


def flags_after(choice: Choice, count: int) -> tuple[bool, ...]:
    """Return the flags after `count` steps of a choice's order."""
    steps = choice.order[:count]
    chosen = {*steps} - {choice.replaces[index] for index in steps if index in choice.replaces}
    return tuple(index in chosen for index in range(len(choice.flags)))


def _measured(choice: Choice, counts: Sequence[int], measure: Measure) -> dict[int, float]:
    wanted = [n for n in counts if n > 0]
    found = dict.fromkeys((n for n in counts if n == 0), 0.0)
    if wanted:
        errors = measure([flags_after(choice, n) for n in wanted])
        found |= dict(zip(wanted, errors, strict=True))
    return found


def _spread(total: int) -> list[int]:
    """Return up to `_POINTS` counts from none to all."""
    if total < _POINTS:
        return list(range(total + 1))
    return sorted({round(total * i / (_POINTS - 1)) for i in range(_POINTS)})


def _saved(flags: Sequence[bool], saved: Sequence[float | None]) -> float | None:
    lowered = [saved_us for saved_us, flag in zip(saved, flags, strict=True) if flag]
    known = [item for item in lowered if item is not None]
    return sum(known) if known or not lowered else None

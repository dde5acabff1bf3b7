"""Interleaved timing: each has one turn a round, in an order that changes, so that drift hits all.

What else the machine does changes from second to second, and which of several comes first or last
in a round can decide. Imports nothing large: these loops run in processes that are measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

_WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 5, 2000

Item = TypeVar("Item")
Measurement = TypeVar("Measurement")

Order: TypeAlias = Callable[[Sequence[int], int], Iterable[int]]
"""Returns the order of a round: of all items, for the round's number."""


def rotated(items: Sequence[Item], number: int) -> list[Item]:
    """Return the order of a round: another is first each second time, and the next turns back.

    Args:
        items: What has turns.
        number: Of the round, from 0.
    """
    order = [items[(index + number // 2) % len(items)] for index in range(len(items))]
    return order if number % 2 == 0 else order[::-1]


def there_and_back(items: Sequence[Item], number: int) -> list[Item]:
    """Return an order with two turns of each: how they differ is noise.

    `measure.result.compare` takes times in this order.
    """
    del number
    return [*items, *items[::-1]]


def interleaved(
    turns: Sequence[Callable[[], Measurement]],
    rounds: int,
    *,
    order: Order = rotated,
    least: int = 1,
    until: float = math.inf,
) -> list[list[Measurement]]:
    """Take turns, round after round.

    Args:
        turns: Each takes one turn and returns what came of it, mostly seconds.
        rounds: How many at most.
        order: In which order they come in a round.
        least: How many rounds there are, whatever the time.
        until: When no further round begins, as `time.perf_counter` counts.

    Returns:
        What came of the turns of each.
    """
    elapsed: list[list[Measurement]] = [[] for _ in turns]
    for number in range(rounds):
        if number >= least and time.perf_counter() > until:
            break
        for index in order(range(len(turns)), number):
            elapsed[index].append(turns[index]())
    return elapsed


def fastest_run(run: Callable[[], object], seconds: float) -> float:
    """Return the seconds of the fastest of some runs, after some that do not count.

    Args:
        run: What is timed.
        seconds: How long the runs go on that count, at least some.
    """
    for _ in range(_WARM_UP):
        run()
    fastest, count = float("inf"), 0
    until = time.perf_counter() + seconds
    while count < _MOST_RUNS and (count < _LEAST_RUNS or time.perf_counter() < until):
        started = time.perf_counter()
        run()
        fastest = min(fastest, time.perf_counter() - started)
        count += 1
    return fastest

"""Interleaved timing: each has one turn a round, in an order that changes, so that drift hits all.

What else the machine does changes from second to second, and which of several comes first or last
in a round can decide. Imports nothing large: these loops run in processes that are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 5, 2000

Item = TypeVar("Item")


def rotated(items: Sequence[Item], number: int) -> list[Item]:
    """Return the order of a round: it begins with another each second time and turns back else.

    Args:
        items: What has turns.
        number: Of the round, from 0.
    """
    order = [items[(place + number // 2) % len(items)] for place in range(len(items))]
    return order if number % 2 == 0 else order[::-1]


def there_and_back(
    first: Callable[[], float], second: Callable[[], float], rounds: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what two take: of each two turns a round, in the order first, second, second, first.

    How a turn differs from the other one of its round is noise; see `measure.result.compare`.
    """
    firsts, seconds = list[float](), list[float]()
    for _ in range(rounds):
        firsts.append(first())
        seconds += [second(), second()]
        firsts.append(first())
    return tuple(firsts), tuple(seconds)


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

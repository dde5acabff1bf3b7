"""A covering design: few input sets over which free sizes meet each other's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["quick", "full"]
"""How much is covered: `quick` makes 4 sets, `full` up to 12 and runs kernels at all sizes."""

QUICK_SETS = 4
_MOST_SETS = 12
#: A set is added only if it brings a new value, or this many new pairs of values.
_LEAST_PAIRS = 1

_Choice: TypeAlias = dict[str, int]
_Pair: TypeAlias = frozenset[tuple[str, int]]


def covering(values: Mapping[str, Sequence[int]], level: Level) -> tuple[_Choice, ...]:
    """Choose values for all names, set by set.

    The first four sets take each name's first four values in turn. The others bring values that
    are new, then as many new pairs of values as possible.

    Args:
        values: By name, the values to try, at least one.
        level: How many sets are wanted.
    """
    chosen = [
        {name: each[number % len(each)] for name, each in values.items()}
        for number in range(QUICK_SETS)
    ]
    chosen = [each for i, each in enumerate(chosen) if each not in chosen[:i]]
    if level == "quick":
        return tuple(chosen)
    missing = {
        frozenset(((a, x), (b, y)))
        for a, b in combinations(values, 2)
        for x in values[a]
        for y in values[b]
    }
    met: set[tuple[str, int]] = set()
    for choice in chosen:
        _note(choice, missing, met)
    while len(chosen) < _MOST_SETS:
        choice = _next(values, missing, met)
        is_new = not set(choice.items()) <= met
        if not is_new and len(_pairs(choice) & missing) < _LEAST_PAIRS:
            break
        chosen.append(choice)
        _note(choice, missing, met)
    return tuple(chosen)


def _next(
    values: Mapping[str, Sequence[int]], missing: set[_Pair], met: set[tuple[str, int]]
) -> _Choice:
    """Choose name by name the value that brings most, new values first."""
    choice: _Choice = {}
    for name, each in values.items():

        def gain(value: int, name: str = name) -> tuple[bool, int, int]:
            pairs = [frozenset(((name, value), other)) for other in choice.items()]
            new = sum(pair in missing for pair in pairs)
            left = sum((name, value) in pair for pair in missing)
            return ((name, value) not in met, new, left)

        choice[name] = max(each, key=gain)
    return choice


def _note(choice: _Choice, missing: set[_Pair], met: set[tuple[str, int]]) -> None:
    missing -= _pairs(choice)
    met |= set(choice.items())


def _pairs(choice: _Choice) -> set[_Pair]:
    return {frozenset(pair) for pair in combinations(choice.items(), 2)}

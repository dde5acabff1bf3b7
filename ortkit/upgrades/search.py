"""Delta debugging over names that can be switched off: which of them break something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

IsBad: TypeAlias = Callable[[Collection[str]], bool]
"""Whether something is wrong with these names switched off."""


def first_bad(order: Sequence[str], off: Collection[str], is_bad: IsBad) -> str:
    """Return the name that, added to those before it, makes things wrong.

    Later names may make things right again: with the names before the answer all is well, and with
    the answer also on it is not.

    Args:
        order: The names to look at. With all of them off things are right, with all on wrong.
        off: Names that stay off.
        is_bad: The test.
    """
    good, bad = 0, len(order)
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad([*off, *order[middle:]]):
            bad = middle
        else:
            good = middle
    return order[bad - 1]


def culprits(order: Sequence[str], is_bad: IsBad, off: Collection[str] = ()) -> tuple[str, ...]:
    """Return names that have to be off for things to be right, and none that has not.

    Switching a name off can let others do harm that had nothing to do before. So the search goes
    on with what it found off, until all is well. Then each is tried on again.

    Args:
        order: The names, in the order in which they act. With all of them off things are right.
        is_bad: The test.
        off: Names that stay off in addition.
    """
    found: list[str] = []
    rest = list(order)
    while is_bad([*off, *found]):
        name = first_bad(rest, [*off, *found], is_bad)
        found.append(name)
        rest.remove(name)
    for name in found[:-1]:
        others = [item for item in found if item != name]
        if not is_bad([*off, *others]):
            found = others
    return tuple(found)


def sufficient(
    order: Sequence[str], first: str, is_bad: IsBad, off: Collection[str] = ()
) -> tuple[str, ...]:
    """Return names that make things wrong with all others off, `first` among them.

    Args:
        order: The names; with all of them on things are wrong.
        first: One that has to be on for that.
        is_bad: The test.
        off: Names that stay off.
    """
    found = [first]
    while not is_bad([*off, *(name for name in order if name not in found)]):
        rest = [name for name in order if name not in found]
        found.append(first_bad(rest, off, is_bad))
    return tuple(found)

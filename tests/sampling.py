"""Which cases of a test are run where not all are: `@pytest.mark.sampled(count)`, `repeats`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping

import pytest

_has_every_case = False


def run_every_case(is_wanted: bool) -> None:
    """Say whether tests run all of their random cases; before they are imported."""
    global _has_every_case
    _has_every_case = is_wanted


def repeats(every: int, sample: int) -> int:
    """Return how many random cases of one kind a test runs.

    Args:
        every: In `scripts/test --all`.
        sample: Otherwise.
    """
    return every if _has_every_case else sample


def cases_left_out(items: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the cases of sampled tests that are not drawn.

    Raises:
        pytest.UsageError: The mark stands at a test that has no parameters, or no more cases.
    """
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.partition("[")[0]
            by_test[test].append(item)
            (counts[test],) = mark.args
    left_out: list[pytest.Item] = []
    for test, cases in by_test.items():
        kept = draw({case.name: _values(case) for case in cases}, counts[test], f"{test} {seed}")
        left_out += [case for case in cases if case.name not in kept]
    return left_out


def draw(cases: Mapping[str, Mapping[str, int]], count: int, seed: str) -> set[str]:
    """Draw cases so that few values of single parameters are missing.

    Args:
        cases: For each case, which value of each parameter it has.
        count: How many to draw; at most all.
        seed: Equal ones draw the same cases.
    """
    waiting = sorted(cases)
    random.Random(seed).shuffle(waiting)
    seen: set[tuple[str, int]] = set()
    drawn: set[str] = set()
    while waiting and len(drawn) < count:
        best = max(waiting, key=lambda case: len(cases[case].items() - seen))
        waiting.remove(best)
        drawn.add(best)
        seen |= cases[best].items()
    return drawn


def _values(case: pytest.Item) -> Mapping[str, int]:
    if not isinstance(case, pytest.Function) or not hasattr(case, "callspec"):
        raise pytest.UsageError(f"{case.nodeid}: sampled, but it has no parameters")
    return dict(case.callspec.indices)

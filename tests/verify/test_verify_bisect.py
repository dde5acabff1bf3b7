"""find_breaking_rewrites: which rewrites it names, and how often it asks."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from ortkit.errors import CheckError
from ortkit.verify.bisect import find_breaking_rewrites

IDS = [f"pass:rule:{i}" for i in range(64)]


class Pipeline:
    """Breaks when all members of any of the `bad` sets are allowed; counts the runs."""

    def __init__(self, *bad: set[str]) -> None:
        self.bad = bad
        self.runs = 0

    def is_good(self, denied: frozenset[str]) -> bool:
        self.runs += 1
        return all(group & denied for group in self.bad)


@pytest.mark.parametrize("culprit", [0, 1, 31, 32, 62, 63])
def test_one_culprit_takes_logarithmically_many_checks(culprit: int) -> None:
    pipeline = Pipeline({IDS[culprit]})
    assert find_breaking_rewrites(IDS, pipeline.is_good) == (IDS[culprit],)
    assert pipeline.runs <= math.log2(len(IDS)) + 2


@pytest.mark.parametrize("culprits", [(0, 63), (5, 6), (0, 1, 2), (3, 31, 60), (61, 62, 63)])
def test_several_culprits_are_all_named(culprits: tuple[int, ...]) -> None:
    pipeline = Pipeline(*({IDS[i]} for i in culprits))
    assert find_breaking_rewrites(IDS, pipeline.is_good) == tuple(IDS[i] for i in culprits)
    assert pipeline.runs <= len(culprits) * (math.log2(len(IDS)) + 3)


def test_every_pair_of_culprits_among_few_is_found_exactly() -> None:
    ids = IDS[:7]
    for pair in combinations(ids, 2):
        assert find_breaking_rewrites(ids, Pipeline({pair[0]}, {pair[1]}).is_good) == pair


def test_rewrites_that_are_wrong_only_together_cost_one_of_them() -> None:
    pipeline = Pipeline({IDS[10], IDS[40]})
    assert find_breaking_rewrites(IDS, pipeline.is_good) in ((IDS[10],), (IDS[40],))


def test_a_rewrite_that_hides_another_is_not_denied_in_vain() -> None:
    # 3 is wrong; denying 5 alone makes 7 wrong, so the answer depends on what is tried first.
    def is_good(denied: frozenset[str]) -> bool:
        return IDS[3] in denied and (IDS[5] not in denied or IDS[7] in denied)

    breaking = find_breaking_rewrites(IDS[:16], is_good)
    assert is_good(frozenset(breaking))
    assert breaking == (IDS[3],)


def test_a_denied_rewrite_that_turns_out_to_be_needless_is_allowed_again() -> None:
    # 9 is wrong, and 2 is wrong without 12: while 12 is denied 2 looks breaking.
    def is_good(denied: frozenset[str]) -> bool:
        return IDS[9] in denied and (IDS[2] in denied or IDS[12] not in denied)

    assert find_breaking_rewrites(IDS[:16], is_good) == (IDS[9],)


def test_the_answer_is_good_even_when_the_checks_run_out() -> None:
    pipeline = Pipeline(*({name} for name in IDS[::4]))
    breaking = frozenset(find_breaking_rewrites(IDS, pipeline.is_good, max_checks=9))
    assert pipeline.runs == 9
    assert pipeline.is_good(breaking)


def test_no_set_is_checked_twice() -> None:
    asked: list[frozenset[str]] = []
    pipeline = Pipeline({IDS[2]}, {IDS[3]}, {IDS[50]})

    def is_good(denied: frozenset[str]) -> bool:
        asked.append(denied)
        return pipeline.is_good(denied)

    find_breaking_rewrites(IDS, is_good)
    assert len(asked) == len(set(asked))


def test_a_break_that_no_rewrite_explains_is_an_error() -> None:
    with pytest.raises(CheckError, match="every rewrite denied"):
        find_breaking_rewrites(IDS, lambda denied: False)

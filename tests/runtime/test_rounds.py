"""Interleaved timing: who comes when, how many rounds there are, and which run counts."""

from __future__ import annotations

import time
from functools import partial

import pytest

from ortkit.runtime import rounds
from ortkit.runtime.rounds import fastest_run, interleaved, rotated, there_and_back


def test_each_place_in_a_round_is_had_as_often_by_all() -> None:
    orders = [rotated("abc", number) for number in range(6)]
    assert orders[:3] == [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]]
    for place in range(3):
        assert sorted(order[place] for order in orders) == sorted("aabbcc")


def test_there_and_back_has_two_turns_of_each() -> None:
    assert there_and_back("ab", 7) == ["a", "b", "b", "a"]


def test_turns_are_taken_in_order_and_kept_by_who_took_them() -> None:
    taken: list[str] = []

    def turn(name: str) -> str:
        taken.append(name)
        return f"{name}{len(taken)}"

    turns = [partial(turn, name) for name in "ab"]
    assert interleaved(turns, 2, order=there_and_back) == [
        ["a1", "a4", "a5", "a8"], ["b2", "b3", "b6", "b7"],
    ]  # fmt: skip
    assert taken == [*"abbaabba"]
    assert interleaved(turns, 0) == [[], []]


def test_no_round_begins_when_time_is_over_but_the_least() -> None:
    over = time.perf_counter() - 1
    assert interleaved([lambda: 1], 9, until=over) == [[1]]
    assert interleaved([lambda: 1], 9, least=3, until=over) == [[1, 1, 1]]
    assert interleaved([lambda: 1], 2, least=3) == [[1, 1]]


@pytest.mark.parametrize(("seconds", "counted"), [(0.0, 5), (1e9, 2000)])
def test_the_fastest_run_counts_after_some_that_do_not(
    seconds: float, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    lengths = iter([1e-9] * 3 + [4.0, 2.0, 3.0] + [5.0] * 2000)

    def run() -> None:
        now[0] += next(lengths)

    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    assert fastest_run(run, seconds) == pytest.approx(2.0)
    assert sum(1 for _ in lengths) == 3 + 3 + 2000 - 3 - counted

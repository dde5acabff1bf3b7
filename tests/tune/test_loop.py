"""Which region a batch goes to, and when to stop; no kernel is made here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tuned_regions import SOFTMAX

from ortkit.kernels.tuning.database import Record, RecordKey
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.loop import Loop
from ortkit.tune.region import TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Times

TARGET = Target("cpu", "x86-64-v3")
#: Three of 23 trials give anything.
PARAMETERS = {"a": (5, 1, 2), "b": (5, 1), "c": (5, 1, 2, 3)}


class Clock:
    """Times kernels that are as fast as their choices say, and notes who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def region(self, name: str, share: float, gain: float = 1.0, default: int = 5) -> TuningRegion:
        def time(
            case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
        ) -> list[Times]:
            self.asked.append(name)
            rounds = [100.0 if each != "a=1" else 100.0 / gain for each in choices]
            return [
                Times(each, ((ns,) * effort.rounds,) * effort.processes)
                for each, ns in zip(choices, rounds, strict=True)
            ]

        case = TuneCase(SOFTMAX, (7,), share)
        place = RecordKey("cpu", "x86-64-v3", "none", name, "")
        return TuningRegion(
            case, "none", TARGET, place, Record("op", "g"), time,
            parameters={key: (default, *values[1:]) for key, values in PARAMETERS.items()},
            name=name,
        )  # fmt: skip


def loop(regions: Sequence[TuningRegion], trials: int | None, budget: float | None) -> Loop:
    made = Loop(TuneStore(None), TARGET, trials, budget, lambda _: None)
    made.regions += regions
    return made


def test_the_larger_share_goes_first_until_it_gives_nothing(cache: Path) -> None:
    """After a batch without a gain it promises a quarter of its share, and then a ninth."""
    clock = Clock()
    found = loop([clock.region("small", 0.2), clock.region("large", 0.7)], None, None)
    found.search(float("inf"))
    assert clock.asked == ["large", "small", "large", "small"]
    assert [len(region.record.trials) for region in found.regions] == [23, 23]


def test_what_a_rule_chooses_for_each_size_promises_less(cache: Path) -> None:
    """Its parameters are 0 by default, as those of kernels by hand are."""
    clock = Clock()
    by_hand = clock.region("by hand", 0.7, default=0)
    found = loop([by_hand, clock.region("generated", 0.2)], 24, None)
    found.search(float("inf"))
    assert clock.asked == ["generated", "by hand"]


def test_where_something_was_found_the_next_batch_goes_too(cache: Path) -> None:
    clock = Clock()
    found = loop([clock.region("small", 0.2), clock.region("large", 0.7, gain=1.5)], 24, None)
    found.search(float("inf"))
    assert clock.asked == ["large", "large", "small"]
    assert found.new_trials == 24


@pytest.mark.parametrize("trials", [0, 1, 13, 30])
def test_no_more_is_tried_than_was_asked_for(cache: Path, trials: int) -> None:
    clock = Clock()
    found = loop([clock.region(name, 0.3) for name in "xyz"], trials, None)
    found.workers, found.together = 3, False
    found.search(float("inf"))
    assert found.new_trials == trials


def test_what_is_best_is_confirmed_and_counts(cache: Path) -> None:
    clock = Clock()
    found = loop([clock.region("x", 0.5, gain=2.0), clock.region("y", 0.5)], 24, None)
    found.search(float("inf"))
    found.confirm()
    assert [region.record.best for region in found.regions] == ["a=1", ""]
    assert found.regions[0].record.gain == pytest.approx(2.0)
    assert found.predicted_gain() == pytest.approx(4 / 3)
    assert found.notes == []


def test_without_time_nothing_is_confirmed_and_that_is_said(cache: Path) -> None:
    clock = Clock()
    found = loop([clock.region("x", 0.5, gain=2.0)], 12, 1e-9)
    found.search(float("inf"))
    found.confirm()
    assert found.regions[0].record.best == ""
    assert found.notes == ["x: no time was left to confirm its best kernel"]


def test_the_time_for_confirming_is_kept_free(cache: Path) -> None:
    clock = Clock()
    found = loop([clock.region("x", 0.5, gain=2.0)], None, None)
    found.search(1.9)
    assert len(found.regions[0].record.trials) == 12

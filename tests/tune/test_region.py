"""What is concluded from times: which trial is kept, which kernel is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tuned_regions import SOFTMAX

from ortkit.errors import KernelError
from ortkit.kernels.tuning.database import Record, RecordKey, TrialRecord, load_database
from ortkit.targets.target import Target
from ortkit.tune import region as module
from ortkit.tune.cases import TuneCase
from ortkit.tune.region import TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Times

PLACE = RecordKey("Some CPU", "x86-64-v3", "tvm", SOFTMAX.key, "s0=8")
Timer = Callable[[Sequence[str], Effort], list[Times]]


def tuning(record: Record | None = None) -> TuningRegion:
    case = TuneCase(SOFTMAX, (8,), share=0.5)
    return TuningRegion(case, "tvm", Target().resolved(), PLACE, record or Record("op", "g"))


@pytest.fixture
def store(tmp_path: Path) -> TuneStore:
    return TuneStore(tmp_path / "db.json")


def timed_as(monkeypatch: pytest.MonkeyPatch, speed: dict[str, float]) -> list[list[str]]:
    """Let kernels take 100 ns over their speed, with some noise; returns what is asked for."""
    asked: list[list[str]] = []

    def timer(case, target, backend, choices, effort):
        asked.append(list(choices))
        rounds = [1 + 0.001 * (number % 3) for number in range(effort.rounds)]
        return [
            Times(
                choice,
                (tuple(100 * r / speed.get(choice, 1.0) for r in rounds),) * effort.processes,
            )
            for choice in choices
        ]

    monkeypatch.setattr(module, "time_choices", timer)
    return asked


def test_trials_are_on_disk_when_a_batch_ends(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore, tmp_path: Path
) -> None:
    timed_as(monkeypatch, {"keep=0": 1.25})
    one = tuning()
    one.run(["keep=0", "vector=8"], store)
    kept = load_database(tmp_path / "db.json").records[PLACE]
    assert kept.trials == (TrialRecord("keep=0", 1.25), TrialRecord("vector=8", 1.0))
    assert kept.best == ""
    assert one.is_pending


def test_only_what_is_faster_for_sure_is_chosen(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    one = tuning()
    asked = timed_as(monkeypatch, {"keep=0": 1.25, "vector=8": 1.5, "vector=4": 1.005})
    one.run(["keep=0", "vector=8", "vector=4"], store)
    # What was lucky beside others is not faster by itself.
    timed_as(monkeypatch, {"keep=0": 1.2, "vector=8": 1.0})
    one.confirm(store)
    assert (one.record.best, one.record.gain) == ("keep=0", pytest.approx(1.2))
    assert not one.is_pending
    assert asked == [["", "keep=0", "vector=8", "vector=4"]]
    result = one.result()
    assert result.default_us == pytest.approx(0.1, rel=0.01)
    assert (result.choices, result.trials, result.failed) == ("keep=0", 3, 0)


def test_a_gain_that_is_gone_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    trial = TrialRecord("keep=0", 1.3)
    one = tuning(Record("op", "g", (trial,), "keep=0", 1.3, 0))
    timed_as(monkeypatch, {})
    one.confirm(store)
    assert (one.record.best, one.record.gain) == ("", 1.0)


def test_what_another_generator_found_is_tried_first(tmp_path: Path) -> None:
    store = TuneStore(tmp_path / "db.json")
    trial = TrialRecord("keep=0", 1.3)
    store.put(PLACE, Record("op", "old", (trial,), "keep=0", 1.3, 1))
    record = store.record(PLACE, "op", "new")
    assert (record.trials, record.best, record.generator) == ((), "keep=0", "new")
    assert tuning(record).batch(3)[0] == "keep=0"


def test_a_crash_costs_the_kernel_that_crashes(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    def timer(case, target, backend, choices, effort):
        if "vector=8" in choices:
            raise KernelError("it crashed with signal 11")
        return [Times(choice, ((100.0,) * 9,)) for choice in choices]

    monkeypatch.setattr(module, "time_choices", timer)
    one = tuning()
    one.run(["keep=0", "vector=8"], store)
    assert not one.problem
    assert one.record.trials == (
        TrialRecord("keep=0", 1.0), TrialRecord("vector=8", None, "it crashed with signal 11"),
    )  # fmt: skip


def test_without_times_of_the_default_a_region_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    def timer(case, target, backend, choices, effort):
        raise KernelError("no compiler")

    monkeypatch.setattr(module, "time_choices", timer)
    one = tuning()
    one.run(["keep=0", "vector=8"], store)
    assert one.problem == "no compiler"
    assert one.batch(5) == []
    assert one.record.trials == ()


def test_a_region_that_gives_nothing_lets_others_come_first(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    timed_as(monkeypatch, {})
    one = tuning()
    before = one.promise
    one.run(["keep=0"], store)
    assert one.promise == before / 4


def test_of_several_that_are_faster_the_fastest_is_chosen(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    """Whatever looked best in the trials."""
    timed_as(monkeypatch, {"keep=0": 1.2, "vector=8": 1.5, "unroll=2": 1.3})
    trials = tuple(
        TrialRecord(choices, ratio)
        for choices, ratio in (("keep=0", 1.9), ("vector=8", 1.8), ("unroll=2", 1.7))
    )
    one = tuning(Record("op", "g", trials))
    one.confirm(store)
    assert (one.record.best, round(one.record.gain, 3)) == ("vector=8", 1.5)


def test_what_is_slower_at_its_fastest_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, store: TuneStore
) -> None:
    """Its medians may be better where others disturbed the default more."""
    kept = {"": (80.0, *(100.0,) * 20), "keep=0": (90.0,) * 21}

    def timer(case, target, backend, choices, effort):
        return [Times(choice, (kept[choice],) * effort.processes) for choice in choices]

    monkeypatch.setattr(module, "time_choices", timer)
    one = tuning(Record("op", "g", (TrialRecord("keep=0", 1.1),)))
    one.confirm(store)
    assert (one.record.best, one.record.gain) == ("", 1.0)


@pytest.mark.parametrize(("ratio", "problem", "confirmed"), [
    (0.9, "", 1), (1.5, "", 0), (0.9, "it crashed", 0),
])  # fmt: skip
def test_that_the_default_is_best_needs_no_more_times(
    store: TuneStore, ratio: float, problem: str, confirmed: int
) -> None:
    """Unless something is promising, or went wrong."""
    one = tuning(Record("op", "g", (TrialRecord("keep=0", ratio),)))
    one.problem = problem
    one.conclude(store)
    assert (one.record.confirmed, one.record.best) == (confirmed, "")


def test_trials_of_two_processes_add_up(tmp_path: Path) -> None:
    """Each knows its own only; what is written later decides which kernel is best."""
    first, second = TuneStore(tmp_path / "a.json"), TuneStore(tmp_path / "b.json")
    first.put(PLACE, Record("op", "g", (TrialRecord("keep=0", 1.2),), "keep=0", 1.2, 1))
    second.put(PLACE, Record("op", "g", (TrialRecord("vector=8", 0.9),), "", 1.0, 1))
    found = TuneStore(None).record(PLACE, "op", "g")
    assert [trial.choices for trial in found.trials] == ["keep=0", "vector=8"]
    assert found.best == ""
    assert [item.choices for item in TuneStore(None).record(PLACE, "op", "h").trials] == []
    first.put(PLACE, Record("op", "h", (TrialRecord("tile=8", 1.1),)))
    found = TuneStore(None).record(PLACE, "op", "h")
    assert [one.choices for one in found.trials] == ["tile=8"]

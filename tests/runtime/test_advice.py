"""Advice on settings: what is chosen from what is measured, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.errors import RunError, UserError
from ortkit.runtime.advice.advise import ROUNDS, advise
from ortkit.runtime.advice.result import Measured, Round
from ortkit.runtime.advice.use import Use
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers.child import ConcurrentRuns, Usage
from ortkit.runtime.workers.worker import WorkerError
from tests.runtime.session_models import BAD_RESHAPE, TANH, model

FEEDS = {"x": np.ones((3, 4), np.float32)}
CPU = (("CPUExecutionProvider", {}),)
DEFAULT = SessionSettings()


class FakeWorker:
    """A process whose runs take as long as `cost` says of its settings."""

    loads = 0

    def __init__(self, cost: Any) -> None:
        self.cost = cost

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def load(self, plan: SessionPlan, _: float) -> None:
        FakeWorker.loads += 1
        self.seconds = self.cost(plan.settings, FakeWorker.loads)

    def feed(self, *_: object) -> None: ...

    def concurrent(self, callers: int, *_: object) -> ConcurrentRuns:
        return ConcurrentRuns(callers, (self.seconds,) * 9, 9 * self.seconds / callers)

    def usage(self) -> Usage:
        return {"resident": 1, "peak_resident": 2}


def advice(
    monkeypatch: pytest.MonkeyPatch,
    cost: Any,
    use: Use | None = None,
    settings: SessionSettings = DEFAULT,
) -> Any:
    from ortkit.runtime.advice import advise as module

    monkeypatch.setattr(module, "Worker", lambda: FakeWorker(cost))
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.01)
    FakeWorker.loads = 0
    plan = SessionPlan(Path("m.onnx"), providers=CPU, settings=settings)
    return advise(plan, Path("feeds"), use or Use(seconds=0.1))


def test_the_fastest_settings_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(settings: SessionSettings, _: int) -> float:
        return 0.01 if settings.threads == 1 else 0.02

    found = advice(monkeypatch, cost)
    assert found.changes == {"threads": 1}
    assert found.settings == SessionSettings(threads=1)
    assert found.gain == pytest.approx(0.5)
    assert found.reasons[0] == (
        "1 thread instead of as the session is: p95 10 ms and p95 20 ms, "
        f"saves 50% in the median of {ROUNDS} rounds"
    )
    assert "is not surely better than 1 thread" in found.reasons[1]
    assert found.rows[0].changes == {}
    json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("name", "poor", "good", "label"),
    [
        ("threads", 1, 0, "as many threads as processors"),
        ("spinning", False, True, "spinning"),
        ("parallel", True, False, "independent nodes in turn"),
        ("memory_arena", False, True, "arena"),
    ],
)
def test_what_the_session_has_turned_off_is_tried_too(
    monkeypatch: pytest.MonkeyPatch, name: str, poor: object, good: object, label: str
) -> None:
    def cost(settings: SessionSettings, _: int) -> float:
        return 0.01 if getattr(settings, name) == good else 0.02

    given: dict[str, Any] = {name: poor}
    found = advice(monkeypatch, cost, settings=replace(DEFAULT, **given))
    assert found.changes == {name: good}
    assert found.chosen.label == label


def test_gains_of_steps_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(settings: SessionSettings, _: int) -> float:
        return (0.5 if settings.threads == 1 else 1) * (1 if settings.memory_arena else 0.8)

    found = advice(monkeypatch, cost)
    assert found.changes == {"threads": 1, "memory_arena": False}
    assert found.gain == pytest.approx(1 - 0.5 * 0.8)


def test_what_is_not_better_once_more_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that chose a setting say too much of it."""
    loads: list[int] = []

    def cost(settings: SessionSettings, number: int) -> float:
        loads.append(number)
        return 0.01 if settings.threads != 1 else 0.005 if number <= chosen else 0.0099

    chosen = 10**9
    assert advice(monkeypatch, cost).changes == {"threads": 1}
    chosen = max(loads) - 2 * ROUNDS
    found = advice(monkeypatch, cost)
    assert found.changes == {}
    assert found.gain == 0
    assert found.settings == SessionSettings()
    assert found.reasons[-1] == (
        "1 thread is not better once more: p95 9.9 ms and p95 10 ms, "
        f"saves 1% in the median of {ROUNDS} rounds"
    )


@pytest.mark.parametrize("gain", [0.0, 0.02, -1.0])
def test_what_gains_too_little_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    def cost(settings: SessionSettings, _: int) -> float:
        return 0.01 if settings == SessionSettings() else 0.01 * (1 - gain)

    found = advice(monkeypatch, cost)
    assert found.changes == {}
    assert found.gain == 0
    assert found.settings == SessionSettings()


def test_what_one_round_contradicts_changes_nothing() -> None:
    base = Measured({}, tuple(Round(1, 1, 1) for _ in range(3)), -1)
    often = Measured({"threads": 1}, (Round(1, 0.5, 2), Round(1, 0.5, 2), Round(1, 1.01, 0.9)), -1)
    assert often.gain_over(base, "latency") == 0.5
    assert not often.is_surely_better(base, "latency")
    assert not often.is_surely_better(base, "throughput")
    always = replace(often, rounds=(*often.rounds[:2], Round(1, 0.9, 1.1)))
    assert always.is_surely_better(base, "latency")


def test_settings_that_do_not_run_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(settings: SessionSettings, _: int) -> float:
        if settings != SessionSettings():
            raise WorkerError("no memory")
        return 0.01

    found = advice(monkeypatch, cost)
    assert found.changes == {}
    assert [row.problem for row in found.rows[1:]] == ["no memory"] * (len(found.rows) - 1)
    json.dumps(found.to_json())


def test_every_session_of_the_use_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = advice(monkeypatch, lambda *_: 0.01, Use(callers=2, sessions=3, goal="throughput"))
    assert FakeWorker.loads % (3 * ROUNDS) == 0
    # Each caller makes 100 runs a second.
    assert found.rows[0].middle("per_second") == pytest.approx(3 * 2 * 100)
    assert found.rows[0].peak_bytes == 6


def test_a_session_is_advised_on_and_its_twin_has_the_settings() -> None:
    with ortkit.Session(model(TANH), "cpu") as session:
        found = session.advise(FEEDS, seconds=0.05)
        assert {row.label for row in found.rows} >= {
            "as the session is",
            "1 thread",
            "no spinning",
        }
        assert all(row.rounds for row in found.rows)
        with session.twin(**found.changes) as twin:
            assert twin.settings == found.settings
            np.testing.assert_array_equal(twin.run(FEEDS)["y"], session.run(FEEDS)["y"])


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"callers": 0}, "callers"), ({"callers": 257}, "callers"), ({"callers": 1.5}, "callers"),
        ({"callers": True}, "callers"), ({"sessions": 65}, "sessions"),
        ({"goal": "speed"}, "goal"), ({"seconds": 0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"), ({"seconds": float("inf")}, "seconds"),
        ({"seconds": "3"}, "seconds"),
    ],
)  # fmt: skip
def test_senseless_uses_are_refused(given: dict[str, Any], where: str) -> None:
    with (
        ortkit.Session(model(TANH), "cpu") as session,
        pytest.raises(UserError, match=rf"^{where}: "),
    ):
        session.advise(FEEDS, **given)


def test_feeds_that_do_not_fit_are_refused() -> None:
    with ortkit.Session(model(TANH), "cpu") as session:
        with pytest.raises(UserError, match="x"):
            session.advise({"x": np.ones((3, 5), np.float32)})
        session.close()
        with pytest.raises(UserError, match="closed"):
            session.advise(FEEDS)


def test_a_model_that_does_not_run_is_an_error() -> None:
    feeds = {"x": np.ones(3, np.float32), "s": np.array([4])}
    with ortkit.Session(model(BAD_RESHAPE), "cpu") as session, pytest.raises(RunError):
        session.advise(feeds, seconds=0.05)


def test_other_providers_are_refused(tmp_path: Path) -> None:
    plan = SessionPlan(tmp_path, providers=(("CUDAExecutionProvider", {}), *CPU))
    with pytest.raises(UserError, match="on the CPU alone"):
        advise(plan, tmp_path, Use())

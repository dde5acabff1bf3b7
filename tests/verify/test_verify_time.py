"""Verification ends in its time, and says what there was no time for."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify import sessions
from ortkit.verify.budget import Budget
from ortkit.verify.pair import verify_models
from ortkit.verify.perturbed.runs import PerturbedRuns
from ortkit.verify.reference import Reference
from ortkit.verify.sessions import SessionResult, Setting, run_sessions
from ortkit.verify.verification import Verification
from ortkit.verify.verifier import Verifier

FLAG = "--verify-seconds"
#: A loop that makes many trips where the length is at least `limit`.
LOOP = """g (float[batch, seq] x) => (float[batch, seq] y) {
    a = Tanh(x) shape = Shape(x) size = Gather(shape, one) is_long = Greater(size, limit)
    trips = Where(is_long, many, few)
    y = Loop (trips, , a) <
        body = b (int64 i, bool go, float[batch, seq] s) => (bool k, float[batch, seq] t) {
            k = Identity(go) t = Neg(s)
        }
    >
}"""


def looped(limit: int) -> ir.Model:
    numbers = {"one": 1, "limit": limit, "many": 1 << 40, "few": 2}
    return model(LOOP, {name: np.array(number) for name, number in numbers.items()})


def renamed(limit: int) -> ir.Model:
    """Return the model with other names for what decides about the number of trips."""
    built = looped(limit)
    for node in built.graph:
        for value in node.outputs:
            if value.name not in ("a", "y"):
                value.name = f"other_{value.name}"
    return built


def checked(candidate: ir.Model, seconds: float) -> Verification:
    """Verify a candidate in some seconds; the original has all the time that it needs."""
    with Verifier(looped(1 << 20), seconds=60) as verifier:
        assert isinstance(verifier._state, Reference)
        verifier._state.budget.seconds = seconds
        return verifier.check(candidate)


def test_an_original_that_never_ends_is_given_up_in_time() -> None:
    started = time.monotonic()
    found = verify_models(looped(0), looped(0), seconds=3)
    assert time.monotonic() - started < 60  # others may be busy
    assert found.verdict == "not possible"
    assert "did not finish within" in found.reason
    assert FLAG in found.fix


def test_a_candidate_that_never_ends_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the original had to wait for a processor.
    monkeypatch.setattr(sessions, "_SLOW_FACTOR", 0.0)
    monkeypatch.setattr(sessions, "_SLOW_SECONDS", 0.0)
    found = checked(renamed(0), seconds=3.0)
    assert found.verdict == "no"
    assert "the candidate did not finish within" in found.reason


def test_what_a_slow_candidate_had_no_time_for_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_SLOW_FACTOR", math.inf)
    found = checked(renamed(100), seconds=6.0)
    assert found.verdict == "partly"
    whats = [gap.what for gap in found.not_compared]
    assert "1 of 4 input sets with optimizations off" in whats
    assert "4 of 4 input sets under deploy settings" in whats
    assert any(what.endswith("values in float32") for what in whats)
    assert all(FLAG in gap.fix for gap in found.not_compared)
    assert [each.name for each in found.outputs] == ["y"]


def test_without_time_for_perturbed_runs_nothing_is_said_of_an_output_that_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adding a large number and subtracting it loses digits."""
    text = "g (float[n, 8] x) => (float[n, 8] y) { a = Add(x, c) y = Sub(a, c) }"
    other = "g (float[n, 8] x) => (float[n, 8] y) { a2 = Abs(c) b = Sub(a2, c) y = Add(x, b) }"
    c = {"c": np.array(1e4, np.float32)}
    assert verify_models(model(text, c), model(other, c), samples=1).verdict == "yes"

    def late(runs: PerturbedRuns, *_: object) -> None:
        runs.is_late = True

    monkeypatch.setattr(PerturbedRuns, "_run", late)
    found = verify_models(model(text, c), model(other, c), samples=1)
    assert found.verdict == "partly"
    (gap,) = found.not_compared
    assert "no time left" in gap.reason
    assert FLAG in gap.fix


def test_each_candidate_gets_all_of_the_time() -> None:
    text, w = "g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }", random_weights(8, 8)
    with Verifier(model(text, {"w": w}), seconds=30) as verifier:
        assert isinstance(verifier._state, Reference)
        budget = verifier._state.budget
        assert verifier.check(model(text, {"w": w})).verdict == "yes"
        budget._spent = 100.0
        assert verifier.check(model(text, {"w": w})).verdict == "yes"
        assert 0 < budget.left < 30


def test_a_clock_counts_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr("ortkit.verify.budget.time", SimpleNamespace(monotonic=clock.__next__))
    budget = Budget(1.0)
    next(clock)
    assert budget.left == 1.0
    with budget.running():
        pass
    assert budget.left == 0.75


def test_what_runs_side_by_side_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("ortkit.verify.budget.time.monotonic", lambda: now[0])
    budget = Budget(10.0)
    with budget.running():
        now[0] += 1.0
        with budget.running():
            now[0] += 2.0
            assert budget.left == 7.0
        now[0] += 1.0
    now[0] += 5.0
    assert budget.left == 6.0


def test_no_session_starts_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "stream_isolated", None)
    settings = [Setting(Path("none.onnx"), tmp_path / "results")] * 2
    found = run_sessions(settings, [], 0, 0.0)
    assert [each.is_late for each in found] == [True, True]


def test_a_session_is_slow_beside_another_one() -> None:
    late = SessionResult(is_late=True, seconds=30.0)
    assert late.is_slower_than(SessionResult(seconds=1.0))
    assert not late.is_slower_than(SessionResult(seconds=20.0))
    assert not SessionResult(seconds=30.0).is_slower_than(SessionResult(seconds=1.0))

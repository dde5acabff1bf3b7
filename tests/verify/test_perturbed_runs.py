"""Perturbed runs are made of what is off, on the input sets on which it is, and none twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.graph.io.save import save_model
from ortkit.verify.budget import Budget
from ortkit.verify.exchange import write_feeds
from ortkit.verify.pair import verify_models
from ortkit.verify.perturbed import runs, steps
from ortkit.verify.rewrites import RewriteStage
from ortkit.verify.sessions import SessionResult, Setting

TEXT = "g (float[n, 8] x) => (float[n, 8] y) { t = Tanh(x) y = Mul(t, w) }"


def test_runs_of_a_whole_model_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    run_within = runs.run_within

    def noted(
        budget: Budget, settings: Sequence[Setting], feeds: Sequence[Path], wanted: int
    ) -> list[SessionResult]:
        made.append((settings[0].first, settings[0].repeats))
        return run_within(budget, settings, feeds, wanted)

    monkeypatch.setattr(runs, "run_within", noted)
    path = save_model(model(TEXT, {"w": random_weights(8)}), tmp_path / "m.onnx").model
    for name in ("0", "1"):
        write_feeds(tmp_path / name, {"x": random_weights(3, 8)})
    found = runs.PerturbedRuns(path, tmp_path / "runs", Budget(60.0))
    few = found.of(tmp_path / "0", count=8)
    many = found.of(tmp_path / "0", count=32)
    assert len(few) == 8
    assert [np.asarray(item["y"]).tobytes() for item in many[:8]] == [
        np.asarray(one["y"]).tobytes() for one in few
    ]
    assert len({np.asarray(one["y"]).tobytes() for one in many}) == 32
    assert found.of(tmp_path / "0", count=8)
    assert len(found.of(tmp_path / "1", count=8)) == 8
    assert made == [(0, 8), (8, 24), (0, 8)]


def test_steps_run_on_the_sets_on_which_they_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum loses digits where its inputs are large."""
    made: list[tuple[list[str], list[str]]] = []
    run = RewriteStage.run

    def noted(
        stage: RewriteStage, settings: Sequence[Setting], feeds: Sequence[Path] | None = None
    ) -> list[SessionResult]:
        if settings and settings[0].repeats > 1:
            graph = ir.load(settings[0].model).graph
            names = [value.name or "" for value in graph.outputs]
            made.append((names, [each.name for each in feeds or ()]))
        return run(stage, settings, feeds)

    monkeypatch.setattr(RewriteStage, "run", noted)
    text = "g (float[n, 8] x) => (float[n, 8] y) {{ t = Tanh(x) a = {} b = {} y = Mul(b, t) }}"
    w = {"w": np.full(8, 100, np.float32)}
    original = model(text.format("Add(x, w)", "Sub(a, w)"), w)
    candidate = model(text.format("Add(x, w)", "Identity(x)"), w)
    monkeypatch.setattr(steps, "is_close", lambda _: False)
    assert verify_models(original, candidate).verdict == "yes"
    assert {tuple(names) for names, _ in made} == {("b",)}
    sets = {name for _, names in made for name in names}
    assert sets
    assert len(sets) < 4


def test_few_runs_of_one_model_explain_rounded_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits that a sum loses need no more; for a weight that is off all runs are made."""
    made: list[list[tuple[str, int, int]]] = []
    run = RewriteStage.run

    def noted(
        stage: RewriteStage, settings: Sequence[Setting], feeds: Sequence[Path] | None = None
    ) -> list[SessionResult]:
        if any(each.repeats > 1 for each in settings):
            made.append([(each.results.name, each.first, each.repeats) for each in settings])
        return run(stage, settings, feeds)

    monkeypatch.setattr(RewriteStage, "run", noted)
    text = "g (float16[n, 64] x) => (float16[n, 8] y) {{ {} y = Relu(t) }}"
    weight, far = random_weights(64, 8).astype(np.float16), np.full(8, 100, np.float16)
    lossy = text.format("p = MatMul(x, w) a = Add(p, c) t = Sub(a, c)")
    original = model(lossy, {"w": weight, "c": far})
    short, weights = text.format("v = Transpose(z) t = MatMul(x, v)"), {"z": weight.T.copy()}
    assert verify_models(original, model(short, weights)).verdict == "yes"
    assert made == [[("lost", 0, 4)]]
    weights["z"][3, 5] *= np.float16(1.1)
    made.clear()
    assert verify_models(original, model(short, weights)).verdict == "no"
    assert made[:2] == [[("lost", 0, 4)], [("lost", 4, 4), ("new", 0, 8)]]

"""`tune` from a model to a database that `optimize` makes kernels after."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tuned_regions import WIDTH

from ortkit.errors import KernelError, UserError
from ortkit.kernels.tuning.database import Record, TunedDatabase, database_text, load_database
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.tune import loop, tuner
from ortkit.tune.region import TuningRegion
from ortkit.tune.timing import time_all
from ortkit.tune.tuner import TuneOptions, tune


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_RUN_SECONDS", 0.05)
    monkeypatch.setattr(tuner, "_PROFILE_SECONDS", 0.2)
    monkeypatch.setattr(tuner, "_LEAST_SHARE", 0.0)
    # What the machine does meanwhile is not to decide anything here.
    monkeypatch.setattr(TuningRegion, "is_pending", False)
    # Its name is a hash of the sources as they are now: an edit between two runs of a test would
    # make another generator of it, whose trials are none of the first one's.
    monkeypatch.setattr(TvmBackend, "fingerprint", lambda _: "one generator")


def trials_in(path: Path) -> list[str]:
    records = load_database(path).records.values()
    return [trial.choices for record in records for trial in record.trials]


def test_a_second_run_repeats_no_trial(model: Path, cache: Path) -> None:
    first = tune(model, TuneOptions(trials=3, shapes={"n": 4}))
    assert (first.trials, first.inputs) == (3, {"x": (4, WIDTH), "w": (WIDTH, 8)})
    assert 0 < sum(item.share for item in first.regions) <= 1
    before = trials_in(cache / "tuned.json")
    second = tune(model, TuneOptions(trials=4, shapes={"n": 4}))
    after = trials_in(cache / "tuned.json")
    assert (second.trials, len(after)) == (4, 7)
    assert after[:3] == before
    assert len(set(after)) == 7
    assert [region.trials for region in second.regions] == [7]


def test_what_was_tried_before_an_interrupt_is_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, monkeyed = TuningRegion.run, []

    def interrupted(self, choices, store):
        if monkeyed:
            raise KeyboardInterrupt
        monkeyed.append(1)
        run(self, choices[:2], store)

    monkeypatch.setattr(TuningRegion, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(model, TuneOptions(trials=20))
    kept = trials_in(cache / "tuned.json")
    assert len(kept) == 2
    monkeypatch.setattr(TuningRegion, "run", run)
    tune(model, TuneOptions(trials=2))
    assert len(load_database(cache / "tuned.json")) == 1
    after = trials_in(cache / "tuned.json")
    assert after[:2] == kept
    assert len(set(after)) == len(after) == 4


def test_a_busy_machine_tunes_the_same_sizes(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a run takes: else a second run would begin again at other sizes."""
    first = tune(model, TuneOptions(trials=1))
    monkeypatch.setattr(tuner, "_RUN_SECONDS", 1e-9)
    assert tune(model, TuneOptions(trials=1)).inputs == first.inputs
    (place,) = load_database(cache / "tuned.json").records
    assert place.bucket


def test_batches_of_several_regions_are_tried_together(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one fails, its kernels are tried by themselves."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[64, 512] x, float[512, 512] w) => (float[64, 512] y)
        { a = Tanh(x)  b = Mul(a, x)  c = Sigmoid(b)  p = MatMul(c, w)
          d = Erf(p)  e = Mul(d, p)  f = Add(e, d)  y = Softmax <axis = -1> (f) }"""
    path = tmp_path / "two.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    together: list[int] = []

    def one_fails(requests, target, effort):
        together.append(len(requests))
        found = time_all(requests, target, effort)
        return [KernelError("it crashed"), *found[1:]]

    made = tuner.runner_for

    @contextmanager
    def several(options):
        with made(options) as runner:
            yield replace(runner, workers=4)

    monkeypatch.setattr(tuner, "runner_for", several)
    monkeypatch.setattr(loop, "time_all", one_fails)
    found = tune(path, TuneOptions(trials=20))
    assert together
    assert set(together) == {2}
    assert len(found.regions) == 2
    assert found.trials == len(trials_in(cache / "tuned.json")) == 20
    assert all(region.new_trials and not region.problem for region in found.regions)


def test_trials_of_another_generator_are_none(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made again: what it makes is other code."""
    tune(model, TuneOptions(trials=2))
    before = trials_in(cache / "tuned.json")
    monkeypatch.setattr(TvmBackend, "fingerprint", lambda _: "another generator")
    found = tune(model, TuneOptions(trials=2))
    assert (found.trials, trials_in(cache / "tuned.json")) == (2, before)


def test_a_database_goes_to_another_machine(model: Path, tmp_path: Path, cache: Path) -> None:
    """Its records are merged there, and kernels are made after them."""
    shipped = tmp_path / "m.tuned.json"
    tune(model, TuneOptions(trials=1, db=shipped))
    found = load_database(shipped)
    (place,) = found.records
    best = Record("op", "g", (), "keep=0,vector=8", 1.5, 1)
    shipped.write_text(database_text(TunedDatabase({place: best})))
    (cache / "tuned.json").unlink()
    default = optimize(model, OptimizeOptions(verify=False))
    assert default.library is not None
    plain = default.library.read_bytes()
    result = tune(model, TuneOptions(trials=0, merge=(shipped,)))
    assert result.trials == 0
    assert load_database(cache / "tuned.json").records[place].best == best.best
    tuned = optimize(model, OptimizeOptions(verify=True))
    assert tuned.report.verification is not None
    assert tuned.report.verification.verdict == "yes"
    assert tuned.library is not None
    assert tuned.library.read_bytes() != plain


def test_no_kernels_nothing_to_tune(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    onnx.save(onnx.parser.parse_model(text), path)
    found = tune(path, TuneOptions(trials=1))
    assert found.regions == ()
    assert "no kernels to tune" in found.notes[0]


def test_a_database_of_another_version_stays_as_it_is(model: Path, cache: Path) -> None:
    cache.mkdir()
    text = json.dumps({"schema": "ortkit.tuned/99", "records": []})
    (cache / "tuned.json").write_text(text)
    with pytest.raises(UserError, match="another version"):
        tune(model, TuneOptions(trials=1))
    assert (cache / "tuned.json").read_text() == text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"trials": -1}, "trials"), ({"seconds": 0.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"), ({"threads": -1}, "threads"),
        ({"cpu": "x86-64-v9"}, "x86-64-v9"), ({"target": "tpu"}, "target"),
        ({"target": "cuda", "runner": "ray"}, "runner"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        TuneOptions(**options)  # type: ignore[arg-type]

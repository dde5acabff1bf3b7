"""Variants side by side: what is said of their times, their memory and their results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.comparison import tf32
from ortkit.comparison.comparing import CompareOptions, compare_models
from ortkit.comparison.result import BatchResult, Comparison, RowResult
from ortkit.errors import ModelError, RunError, UserError
from ortkit.runtime.workers.interleave import Schedule
from ortkit.runtime.workers.worker import SessionPlan

SHORT = Schedule(seconds=0.1, rounds=2, processes=1)
FULL = Schedule(seconds=0.1, rounds=4, processes=2)
HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
PLAIN = HEAD + "g (float[batch, 64] x) => (float[batch, 64] y) { a = Tanh(x)  y = Add(a, x) }"
#: The same at other names, within rounding.
SWAPPED = PLAIN.replace("Add(a, x)", "Add(x, a)")
OTHER = PLAIN.replace("Tanh", "Sigmoid")
FIXED = PLAIN.replace("batch", "2")


def save(folder: Path, text: str, name: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name


def compare(*models: Path, **given: object) -> Comparison:
    given = {"threads": (1,), "schedule": SHORT, **given}
    return compare_models(models, CompareOptions(**given))  # type: ignore[arg-type]


def only(found: Comparison) -> BatchResult:
    (batch,) = found.batches
    return batch


def second(found: Comparison) -> RowResult:
    return only(found).rows[1]


def test_two_that_are_alike(tmp_path: Path) -> None:
    models = save(tmp_path, PLAIN, "a.onnx"), save(tmp_path, SWAPPED, "b.onnx")
    found = compare(*models, schedule=FULL)
    assert found.equality == "equal"
    assert found.version
    batch = only(found)
    assert batch.inputs == {"x": (1, 64)}
    assert batch.control is not None and batch.control.low is not None
    assert batch.noise is not None and batch.noise >= 0.01
    first, other = batch.rows
    assert first.equality is None and first.speedup is None
    assert other.equality == "equal" and other.speedup is not None
    (output,) = other.outputs
    assert output.judged.max_error_eps <= output.judged.allowed_eps
    assert output.distance is not None and output.distance.cosine == pytest.approx(1)
    for row in batch.rows:
        assert list(row.nodes) == ["CPUExecutionProvider"]
        assert row.load_ms is not None and row.load_ms.count == FULL.processes
        assert row.first_run_ms is not None and row.first_run_ms.least > 0
        assert row.latency is not None and row.memory is not None
        assert row.latency.least <= row.latency.p50 <= row.latency.p95 <= row.latency.most
        assert row.latency.runs >= row.latency.median.rounds >= 8
        memory = row.memory
        assert memory.before is not None and memory.peak is not None
        assert 0 < memory.before <= memory.peak
        assert memory.arenas or memory.not_available
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["schema"] == "ortkit.compare/1"


def test_a_verdict_follows_from_ratio_interval_and_noise(tmp_path: Path) -> None:
    work = " ".join(f"a{i + 1} = Tanh(a{i})" for i in range(60))
    text = f"{HEAD}g (float[batch, 4096] a0) => (float[batch, 4096] y) {{ {work} y = Abs(a60) }}"
    short = text.replace(work, "a60 = Tanh(a0)")
    models = save(tmp_path, text, "slow.onnx"), save(tmp_path, short, "fast.onnx")
    found = compare(*models, schedule=FULL)
    gain, noise = second(found).speedup, only(found).noise
    assert gain is not None and gain.low is not None and noise is not None
    assert gain.ratio > 2
    is_faster = gain.low > 1 and gain.ratio > 1 + noise
    assert gain.direction == ("faster" if is_faster else "no difference")


def test_other_results_are_different(tmp_path: Path) -> None:
    found = compare(save(tmp_path, PLAIN, "a.onnx"), save(tmp_path, OTHER, "b.onnx"))
    assert found.equality == "different"
    (output,) = second(found).outputs
    assert not output.judged.equal and "epsilons" in output.judged.reason
    assert output.distance is not None
    assert output.distance.absolute.maximum is not None
    assert output.distance.absolute.maximum > 0.01


def test_one_thing_at_a_time(tmp_path: Path) -> None:
    found = compare(save(tmp_path, PLAIN, "a.onnx"), threads=(1, 2), optimizations=("all", "off"))
    rows = only(found).rows
    assert [row.row.against for row in rows] == [None, 1, 1, 2]
    assert [row.row.threads for row in rows] == [1, 1, 2, 2]
    assert found.equality == "equal"


def test_batches_and_a_fixed_one(tmp_path: Path) -> None:
    models = save(tmp_path, PLAIN, "a.onnx"), save(tmp_path, FIXED, "b.onnx")
    found = compare(*models, batches=(2, 8))
    two, eight = found.batches
    assert two.inputs == {"x": (2, 64)} and eight.inputs == {"x": (8, 64)}
    assert two.rows[1].equality == "equal"
    assert eight.rows[1].skipped and eight.rows[1].problem == "its batch is fixed at 2"
    assert eight.rows[1].latency is None
    latency = eight.rows[0].latency
    assert latency is not None and latency.items_per_second is not None
    assert latency.items_per_second == pytest.approx(8 * latency.per_second)
    assert found.equality == "equal"  # what was never meant to run is no failure
    none = compare(*reversed(models), batches=(8,))
    assert all(row.skipped for row in only(none).rows)
    assert none.equality == "not known"


def test_inputs_of_the_users(tmp_path: Path) -> None:
    model = save(tmp_path, PLAIN, "a.onnx")
    np.savez(tmp_path / "x.npz", x=np.full((3, 64), np.nan, np.float32))
    found = compare(model, model, inputs=tmp_path / "x.npz")
    batch = only(found)
    assert batch.inputs == {"x": (3, 64)}
    assert "input 'x': 192 of 192 values are NaN or infinite" in batch.notes
    assert "every output is empty, NaN or infinite: equality is not known" in batch.notes
    assert found.equality == "not known"


def test_a_near_tie_is_equal(tmp_path: Path) -> None:
    """An argmax over values that differ by a rounding may name either."""
    weights = np.full((64, 64), 1 / 64, np.float32)
    text = HEAD + "g (float[batch, 64] x) => (int64[batch, 1] y) {{ {} y = ArgMax<axis = 1>(v) }}"
    one, two = (onnx.parser.parse_model(text.format(body)) for body in (
        "v = MatMul(x, w)", "s = ReduceMean<keepdims = 1>(x, axes) n = Add(s, tiny) v = Mul(n, o)",
    ))  # fmt: skip
    one.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    tiny = np.zeros(64, np.float32)
    tiny[40] = 1e-7
    for name, array in {"axes": np.int64([1]), "tiny": tiny, "o": np.ones(64, np.float32)}.items():
        two.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(one, tmp_path / "a.onnx")
    onnx.save(two, tmp_path / "b.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 64), np.float32))
    found = compare(tmp_path / "a.onnx", tmp_path / "b.onnx", inputs=tmp_path / "x.npz")
    (output,) = second(found).outputs
    assert output.judged.equal, output.judged.reason
    assert output.judged.near_ties == 2


def test_tf32_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for CUDA: one row computes in TF32, and without it what the first computes."""
    models = save(tmp_path, PLAIN, "a.onnx"), save(tmp_path, OTHER, "b.onnx")
    monkeypatch.setattr(tf32, "uses_tf32", lambda plan: plan.model.name == "b.onnx")
    monkeypatch.setattr(tf32, "without_tf32", lambda plan: replace(plan, model=models[0]))
    found = compare(*models)
    assert found.equality == "equal"
    (note,) = only(found).notes
    assert note.startswith("row 2: float32 products are in TF32") and "compared without it" in note
    monkeypatch.setattr(tf32, "without_tf32", lambda plan: plan)
    assert compare(*models).equality == "different"


def test_which_sessions_compute_in_tf32() -> None:
    cuda, cpu = ("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})
    plan = SessionPlan(Path("m.onnx"), providers=[cuda, cpu])
    assert tf32.uses_tf32(plan)
    exact = tf32.without_tf32(plan)
    assert list(exact.providers) == [("CUDAExecutionProvider", {"use_tf32": "0"}), cpu]
    assert not tf32.uses_tf32(exact)
    assert not tf32.uses_tf32(SessionPlan(Path("m.onnx")))


def test_random_outputs_are_named_and_not_compared(tmp_path: Path) -> None:
    text = HEAD + (
        "g (float[batch, 64] x) => (float[batch, 64] y, float[batch, 64] z) "
        "{ y = Tanh(x)  r = RandomNormalLike(x)  z = Add(r, x) }"
    )
    model = save(tmp_path, text, "a.onnx")
    found = compare(model, model)
    assert [each.judged.name for each in second(found).outputs] == ["y"]
    assert "random, so not compared: z" in only(found).notes
    assert found.equality == "equal"


def test_an_output_that_is_missing_or_of_another_shape(tmp_path: Path) -> None:
    two = HEAD + (
        "g (float[batch, 64] x) => (float[batch, 64] y, float[batch, 64] z) "
        "{ y = Tanh(x) z = Neg(x) }"
    )
    one = HEAD + "g (float[batch, 64] x) => (float[64, batch] y) { t = Tanh(x) y = Transpose(t) }"
    found = compare(save(tmp_path, two, "a.onnx"), save(tmp_path, one, "b.onnx"))
    shape, lost = second(found).outputs
    assert shape.judged.reason == "shape [64, 1] instead of [1, 64]"
    found = compare(tmp_path / "b.onnx", tmp_path / "a.onnx")
    assert "row 2 has outputs that row 1 lacks: z" in only(found).notes
    assert (lost.judged.name, lost.judged.reason) == ("z", "is missing")
    json.dumps(found.to_json(), allow_nan=False)


# ---- what goes wrong -----------------------------------------------------------------------


def test_a_variant_that_does_not_run_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    models = [save(tmp_path, PLAIN, "a.onnx"), save(tmp_path, SWAPPED, "b.onnx")]
    inputs = HEAD + "g (float[batch, 32] x) => (float[batch, 32] y) { y = Tanh(x) }"
    found = compare(models[0], save(tmp_path, inputs, "bad.onnx"), models[1])
    bad, good = only(found).rows[1:]
    assert "Expected: 32" in bad.problem and not bad.skipped
    assert bad.latency is None and bad.equality is None
    assert good.equality == "equal" and good.latency is not None
    assert found.equality == "different"


def test_a_crash_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 follows the null pointer of an Attention without bias."""
    body = (
        "s = Constant<value_ints = [1, -1, 64]>() r = Reshape(x, s) "
        "a = com.microsoft.Attention<num_heads = 4>(r, w) "
        "t = Constant<value_ints = [-1, 64]>() y = Reshape(a, t)"
    )
    text = PLAIN.replace("20]", '20, "com.microsoft" : 1]').replace(
        "a = Tanh(x)  y = Add(a, x)", body
    )
    proto = onnx.parser.parse_model(text)
    weights = np.full((64, 192), 0.1, np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "crash.onnx")
    code = (
        "import sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "session.run(None, {'x': numpy.ones((1, 64), 'float32')})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "crash.onnx")]
    if subprocess.run(command, capture_output=True, check=False).returncode >= 0:
        pytest.skip("this ONNX Runtime does not crash on it")
    found = compare(save(tmp_path, PLAIN, "a.onnx"), tmp_path / "crash.onnx")
    row = second(found)
    assert row.problem.startswith("crashed with signal"), row.problem
    assert found.equality == "different"


def test_the_first_must_run(tmp_path: Path) -> None:
    text = HEAD + (
        "g (float[batch, 64] x) => (float[batch, 3] y) "
        "<int64[2] shape = {-1, 7}> { r = Reshape(x, shape) y = Expand(r, shape) }"
    )
    with pytest.raises(RunError, match=r"bad\.onnx: does not run"):
        compare(save(tmp_path, text, "bad.onnx"), save(tmp_path, PLAIN, "a.onnx"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"providers": ("cpuu",)}, "is no execution provider; did you mean 'cpu'"),
        ({"batches": (0,)}, "batch: a batch of 0"),
        ({"shapes": {"bach": 2}}, "did you mean batch"),
        ({"batches": (2,), "shapes": {"batch": 2}}, "shapes batch: is the batch"),
        ({"optimizations": ("most",)}, "'most' is not known"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], said: str, tmp_path: Path) -> None:
    model = save(tmp_path, PLAIN, "a.onnx")
    with pytest.raises(UserError, match=said):
        compare(model, model, **given)


def test_bad_inputs_and_models_are_refused(tmp_path: Path) -> None:
    model = save(tmp_path, PLAIN, "a.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 5), np.float32))
    with pytest.raises(UserError, match=r"has shape \[3, 5\], the model wants \[batch, 64\]"):
        compare(model, model, inputs=tmp_path / "x.npz")
    with pytest.raises(UserError, match="leave batch or inputs out"):
        compare(model, model, inputs=tmp_path / "x.npz", batches=(2,))
    with pytest.raises(ModelError):
        compare(model, tmp_path / "none.onnx")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    model = save(tmp_path, PLAIN, "a.onnx")
    compare(model, model)
    with pytest.raises(UserError):
        compare(model, model, shapes={"none": 1})
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seconds": 0}, "seconds: 0 seconds"),
        ({"seconds": float("inf")}, "seconds: inf seconds"),
        ({"rounds": -1}, "rounds: -1 makes no sense"),
        ({"processes": 0}, "processes: 0 makes no sense"),
    ],
)
def test_a_schedule_makes_sense(given: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Schedule(**given)  # type: ignore[arg-type]


def test_rounds_are_as_many_as_asked_for(tmp_path: Path) -> None:
    model = save(tmp_path, PLAIN, "a.onnx")
    found = compare(model, model, schedule=Schedule(seconds=0.1, rounds=3, processes=2))
    for row in only(found).rows:
        assert row.latency is not None and row.latency.median.rounds == 6

"""Verifier: the verdicts, through real sessions in child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model, proto, random_weights, save

from ortkit.errors import MissingDependencyError, UserError
from ortkit.verify import sessions, verifier
from ortkit.verify.pair import verify_models
from ortkit.verify.reference import Reference
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.rewrites import RewriteStage
from ortkit.verify.sessions import SessionResult
from ortkit.verify.verifier import Verifier

TWO_LAYERS = """
g (float[batch, 32] x) => (float[batch, 32] hidden, float[batch, 16] logits) {
    m = MatMul(x, first)
    hidden = Tanh(m)
    logits = MatMul(hidden, second)
}
"""
WEIGHTS = {"first": random_weights(32, 32), "second": random_weights(32, 16, seed=1)}


@pytest.fixture(scope="module")
def two_layers() -> Iterator[Verifier]:
    """One reference serves many candidates."""
    with Verifier(model(TWO_LAYERS, WEIGHTS)) as verifier:
        yield verifier


def test_a_model_agrees_with_itself(two_layers: Verifier, tmp_path: Path) -> None:
    found = two_layers.check(save(tmp_path, "m", proto(TWO_LAYERS, WEIGHTS)))
    assert (found.verdict, found.samples) == ("yes", 4)
    assert [each.name for each in found.outputs] == ["hidden", "logits"]
    assert "2 outputs, 4 input sets; largest error " in found.reason
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["verdict"] == "yes"


def test_a_perturbed_weight_names_the_output_and_the_error(two_layers: Verifier) -> None:
    wrong = {**WEIGHTS, "second": WEIGHTS["second"].copy()}
    wrong["second"][3, 5] *= 1 + 1e-2
    found = two_layers.check(model(TWO_LAYERS, wrong))
    assert found.verdict == "no"
    assert found.reason.startswith("output 'logits', computed from the original's values in")
    assert "epsilons of float32 in row [" in found.reason
    (logits,) = found.outputs
    assert not logits.equal
    assert logits.max_error_eps > 2 * logits.allowed_eps


def test_a_relative_error_of_a_thousandth_is_found(two_layers: Verifier) -> None:
    wrong = {**WEIGHTS, "first": WEIGHTS["first"] * np.float32(1.001)}
    found = two_layers.check(model(TWO_LAYERS, wrong))
    assert [each.name for each in found.values.wrong] == ["m"]


def test_another_interface_is_a_mismatch() -> None:
    original = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    candidates = (
        ("g (float[3] x) => (float[3] z) { z = Relu(x) }", "lacks the output 'y'"),
        ("g (float[3] w) => (float[3] y) { y = Relu(w) }", "lacks the input 'x'"),
        ("g (float[3] x, float[3] w) => (float[3] y) { y = Relu(x) }", "another input, 'w'"),
        ("g (float[3] x) => (float[1, 3] y) { s = Relu(x) y = Unsqueeze(s, axis) }", "shape"),
    )
    with Verifier(original) as verifier:
        for text, reason in candidates:
            found = verifier.check(model(text, {"axis": np.array([0])}))
            assert found.verdict == "no"
            assert reason in found.reason


def test_integers_must_be_equal() -> None:
    original = model("g (int64[n] x) => (int64[n] y) { y = Add(x, one) }", {"one": np.array(1)})
    wrong = model("g (int64[n] x) => (int64[n] y) { y = Add(x, one) }", {"one": np.array(2)})
    with Verifier(original) as verifier:
        assert verifier.check(original).verdict == "yes"
        found = verifier.check(wrong)
    assert found.verdict == "no"
    assert "elements differ" in found.reason


PICK = "g (float[8, 6] x) => (int64[8, 1] y) { v = Mul(x, w) y = ArgMax <axis = 1> (v) }"


def test_near_ties_of_an_argmax_pass_and_are_counted(tmp_path: Path) -> None:
    """Columns 2 and 4 hold the largest value; which is larger hangs on one rounding."""
    x = np.random.default_rng(0).uniform(0, 1, (8, 6)).astype(np.float32)
    x[:, 2] = x[:, 4] = 3.0
    np.savez(tmp_path / "in.npz", x=x)
    first, second = np.ones(6, np.float32), np.ones(6, np.float32)
    first[2] = second[4] = np.nextafter(np.float32(1), np.float32(2))
    with Verifier(model(PICK, {"w": first}), inputs=tmp_path / "in.npz") as verifier:
        found = verifier.check(model(PICK, {"w": second}))
        second[0] = 5.0
        worse = verifier.check(model(PICK, {"w": second}))
    # Eight elements differ with optimizations off, and eight under deploy settings.
    assert (found.verdict, found.near_ties) == ("yes", 16)
    assert "16 near ties" in found.reason
    assert worse.verdict == "no"


def test_near_ties_of_a_comparison_pass(tmp_path: Path) -> None:
    text = "g (float[4] x) => (bool[4] y) { v = Mul(x, w) y = Greater(v, limit) }"
    np.savez(tmp_path / "in.npz", x=np.array([0.5, 1.5, 1.5, 2], np.float32))
    limit = np.array(1.5, np.float32)
    above = np.nextafter(np.float32(1), np.float32(2))
    original = model(text, {"w": np.array([1, above, 1, 1], np.float32), "limit": limit})
    other = model(text, {"w": np.array([1, 1, above, 1], np.float32), "limit": limit})
    wrong = model(text, {"w": np.array([3, 1, 1, 1], np.float32), "limit": limit})
    with Verifier(original, inputs=tmp_path / "in.npz") as verifier:
        found = verifier.check(other)
        assert (found.verdict, found.near_ties) == ("yes", 4)
        assert verifier.check(wrong).verdict == "no"


def test_nan_and_infinity_in_the_original_are_kept() -> None:
    text = "g (float[n, 8] x) => (float[n, 8] y, float[n, 8] k) { y = Mul(x, w) k = Identity(x) }"
    w = np.array([np.nan, np.inf, 1, 1, 1, 1, 1, 1], np.float32)
    with Verifier(model(text, {"w": w})) as verifier:
        assert verifier.check(model(text, {"w": w})).verdict == "yes"
        found = verifier.check(model(text, {"w": np.nan_to_num(w)}))
    assert found.verdict == "no"
    assert "NaN or infinity" in found.reason


def test_what_is_drawn_is_named_and_what_is_computed_of_it_compared() -> None:
    text = """g (float[4, 4] x, bool c) => (float[4, 4] a, float[4, 4] b, float[4, 4] d) {
        r = RandomNormalLike(x) a = Add(r, x) b = Relu(x)
        d = If (c) < then_branch = t () => (float[4, 4] p) { p = Bernoulli(x) },
                     else_branch = e () => (float[4, 4] q) { q = Relu(x) } >
    }"""
    found = verify_models(model(text), model(text))
    assert (found.verdict, found.excluded) == ("partly", ("a", "d"))
    # The value that `a` is computed from is drawn once, for both models.
    assert "not compared: output 'd' (it depends on random numbers)" in found.reason
    assert [gap.what for gap in found.not_compared] == ["output 'd'"]
    assert found.is_good
    assert not found.lacks_hardware_only
    only = model("g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }")
    found = verify_models(only, only)
    assert found.verdict == "not possible"
    assert "output 'y' (it depends on random numbers)" in found.reason


def test_other_sizes_are_tried_when_the_first_do_not_run() -> None:
    """A reshape into windows of 32: neither of the first two sizes can run."""
    text = "g (float[n] x) => (float[m, 32] y) { y = Reshape(x, windows) }"
    windowed = model(text, {"windows": np.array([-1, 32])})
    found = verify_models(windowed, windowed)
    assert found.verdict == "yes"
    assert found.samples >= 2


def test_a_model_that_never_runs_is_not_possible_with_the_reason() -> None:
    text = "g (float[n] x) => (float[m] y) { y = Reshape(x, never) }"
    broken = model(text, {"never": np.array([-1, 1009])})
    found = verify_models(broken, broken)
    assert found.verdict == "not possible"
    assert "ONNX Runtime does not run the original: " in found.reason
    assert "Reshape" in found.reason


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    good = save(tmp_path, "good", proto("g (float[3] x) => (float[3] y) { y = Relu(x) }"))
    bad = save(tmp_path, "bad", proto("g (float[3] x) => (float[3] y) { y = own.Unknown(x) }"))
    found = verify_models(bad, good)
    assert found.verdict == "not possible"
    assert "ONNX Runtime does not load the original: " in found.reason
    found = verify_models(good, bad)
    assert found.verdict == "no"
    assert "cannot be loaded with optimizations off: " in found.reason


def test_results_without_a_finite_number_prove_nothing() -> None:
    text = "g (float[n] x) => (float[n] y) { y = Mul(x, w) }"
    nothing = model(text, {"w": np.array(np.nan, np.float32)})
    found = verify_models(nothing, nothing)
    assert found.verdict == "not possible"
    assert "NaN" in found.reason


def test_shapes_and_inputs_of_the_user(tmp_path: Path) -> None:
    built = model(TWO_LAYERS, WEIGHTS)
    np.savez(tmp_path / "in.npz", x=np.ones((3, 32), np.float32))
    assert verify_models(built, built, inputs=tmp_path / "in.npz").samples == 1
    with pytest.raises(UserError, match="no input has a size named"):
        verify_models(built, built, shapes={"length": 5})
    with pytest.raises(UserError, match="0 input sets"):
        Verifier(built, samples=0)


# ---- unusual types ------------------------------------------------------------------------


def casts(*names: str) -> onnx.ModelProto:
    """Cast inputs of each type to float32, and one float32 input to outputs of each type."""
    nodes, inputs = [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])]
    outputs = []
    for name in names:
        kind = TensorProto.DataType.Value(name)
        inputs.append(helper.make_tensor_value_info(f"in_{name}", kind, ["n", 16]))
        outputs.append(helper.make_tensor_value_info(f"out_{name}", kind, ["n", 16]))
        outputs.append(helper.make_tensor_value_info(f"as_{name}", TensorProto.FLOAT, ["n", 16]))
        nodes.append(helper.make_node("Cast", ["x"], [f"out_{name}"], to=kind))
        nodes.append(helper.make_node("Cast", [f"in_{name}"], [f"as_{name}"], to=1))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    "names",
    [
        ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT16", "DOUBLE", "INT4", "UINT4", "UINT16"],
        ["STRING", "INT8"],
    ],
)
def test_unusual_types_go_in_and_come_out(tmp_path: Path, names: list[str]) -> None:
    path = save(tmp_path, "m", casts(*names))
    found = verify_models(path, path)
    assert found.verdict == "yes", found.reason
    assert len(found.outputs) == 2 * len(names)


def test_sequences_and_optionals_go_in_and_come_out(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(
        [
            helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
            helper.make_node("OptionalHasElement", ["o"], ["has"]),
        ],
        "g",
        [
            helper.make_value_info("s", helper.make_sequence_type_proto(tensor)),
            helper.make_value_info("x", tensor),
            helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        ],
        [
            helper.make_value_info("t", helper.make_sequence_type_proto(tensor)),
            helper.make_tensor_value_info("has", TensorProto.BOOL, []),
        ],
    )
    opsets = [helper.make_opsetid("", 21)]
    path = save(tmp_path, "m", helper.make_model(graph, opset_imports=opsets, ir_version=10))
    found = verify_models(path, path)
    assert found.verdict == "yes", found.reason
    assert [each.dtype for each in found.outputs] == ["sequence", "bool"]


def test_external_data_is_found_also_for_near_ties(tmp_path: Path) -> None:
    text = "g (float[n, 64] x) => (int64[n, 1] y) { v = MatMul(x, w) y = ArgMax <axis = 1> (v) }"
    built = proto(text, {"w": random_weights(64, 64)})
    path = tmp_path / "m.onnx"
    onnx.save(built, path, save_as_external_data=True, location="m.data", size_threshold=0)
    found = verify_models(path, path)
    assert found.verdict == "yes", found.reason


def test_a_model_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    path.write_text(onnx.printer.to_text(proto("g (float[3] x) => (float[3] y) { y = Relu(x) }")))
    found = verify_models(path, path)
    assert found.verdict == "yes", found.reason


# ---- crashes ------------------------------------------------------------------------------


def fake_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Put a function in the child's place that tells of a loaded session and does `body`."""
    (tmp_path / "fake_child.py").write_text(
        "import os, sys, time\n"
        "from ortkit.verify.child import Outcome\n"
        "def run_settings(job, tell):\n"
        "    tell(Outcome(0, 'load'))\n"
        f"    {body}\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_child", raising=False)
    monkeypatch.setattr(sessions, "run_settings", import_module("fake_child").run_settings)


@pytest.mark.parametrize(
    ("body", "reason", "seconds"),
    [
        (f"os.kill(os.getpid(), {int(signal.SIGSEGV)})", "crashed with signal 11 (Segment", 60.0),
        ("time.sleep(300)", "did not finish within ", 2.0),
        ("sys.exit('out of luck')", "ended with status 1: out of luck", 60.0),
    ],
)
def test_a_crash_is_a_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, reason: str, seconds: float
) -> None:
    # A candidate that does not end is wrong, however busy the machine is.
    monkeypatch.setattr(sessions, "_SLOW_FACTOR", 0.0)
    monkeypatch.setattr(sessions, "_SLOW_SECONDS", 0.0)
    built = model(TWO_LAYERS, WEIGHTS)
    with Verifier(built, seconds=60) as verifier:
        assert isinstance(verifier._state, Reference)
        verifier._state.budget.seconds = seconds
        fake_child(monkeypatch, tmp_path, body)
        found = verifier.check(built)
    assert found.verdict == "no"
    assert "with optimizations off" in found.reason
    assert reason in found.reason
    with Verifier(built, seconds=seconds) as verifier:
        found = verifier.check(built)
    assert found.verdict == "not possible"
    assert f"ONNX Runtime does not load the original: {reason}" in found.reason


def test_a_library_that_does_not_load_is_a_verdict(two_layers: Verifier, tmp_path: Path) -> None:
    library = tmp_path / "m.ops.so"
    library.write_bytes(b"no library")
    found = two_layers.check(model(TWO_LAYERS, WEIGHTS), library=library)
    assert found.verdict == "no"
    assert "cannot be loaded under deploy settings: " in found.reason
    assert "m.ops.so" in found.reason


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    built = model(TWO_LAYERS, WEIGHTS)
    verify_models(built, built)
    with pytest.raises(UserError):
        verify_models(built, built, shapes={"x": 1})
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_without_onnxruntime_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    built = model(TWO_LAYERS, WEIGHTS)
    with pytest.raises(MissingDependencyError, match="onnxruntime is not installed"):
        verify_models(built, built)


def test_the_child_imports_nothing_large() -> None:
    code = "import sys, ortkit.verify.child; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(ended.stdout.decode().split())
    assert not loaded & {"onnx", "onnx_ir", "ml_dtypes", "google.protobuf", "rich"}
    ours = {name for name in loaded if name.startswith("ortkit.")}
    assert ours == {
        "ortkit.deferred_imports",
        "ortkit.env",
        "ortkit.errors",
        "ortkit.runtime",
        "ortkit.runtime.library_target",
        "ortkit.runtime.opening",
        "ortkit.runtime.options",
        "ortkit.runtime.ort",
        "ortkit.runtime.settings",
        "ortkit.runtime.tensor_files",
        "ortkit.verify",
        "ortkit.verify.child",
        "ortkit.verify.kernels",
        "ortkit.verify.kernels.library",
        "ortkit.version",
    }


@pytest.mark.parametrize(("weight", "verdict"), [(1.0, "yes"), (1.5, "no")])
def test_a_candidate_runs_while_its_values_are_compared(
    monkeypatch: pytest.MonkeyPatch, weight: float, verdict: str
) -> None:
    is_running, run, check = Event(), Verifier._run, RewriteStage.check

    def noted(self: Verifier, *given: Any) -> list[SessionResult]:
        is_running.set()
        return run(self, *given)

    def waiting(self: RewriteStage, *given: Any) -> RewriteCheck:
        assert is_running.wait(30.0)
        return check(self, *given)

    monkeypatch.setattr(verifier, "judges_here", lambda: 2)
    monkeypatch.setattr(Verifier, "_run", noted)
    monkeypatch.setattr(RewriteStage, "check", waiting)
    text = "g (float[n, 8] x) => (float[n, 8] y) { t = Mul(x, w) y = Relu(t) }"
    original, candidate = (model(text, {"w": np.full(8, w, np.float32)}) for w in (1.0, weight))
    assert verify_models(original, candidate).verdict == verdict

"""Profiles of sessions that run: what is timed, joined with the model, and put away again."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.errors import ModelError, RunError, UserError
from ortkit.runtime.profiling.joining import joined_with
from ortkit.runtime.profiling.model_runs import RunPlan, profile_model
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import Profile, Row
from ortkit.runtime.profiling.saved_trace import profile_saved
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.settings import SessionSettings
from tests.runtime.traces import node, run, traced, written

CPU = SessionSettings(target="cpu", threads=1)
#: An erf-GELU, which ONNX Runtime makes one node of, between products with packed weights.
GELU = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[1, n, 8] x) => (float[1, n, 4] y)
    <float[8, 16] w, float[16] b, float[16, 4] v, float two = {1.41421356},
     float one = {1.0}, float half = {0.5}> {
        [first] p = MatMul (x, w)
        [bias] q = Add (p, b)
        [scale] r = Div (q, two)
        [erf] s = Erf (r)
        [plus] t = Add (s, one)
        [times] u = Mul (q, t)
        [halve] z = Mul (u, half)
        [second] y = MatMul (z, v)
    }"""


def gelu() -> onnx.ModelProto:
    model = onnx.parser.parse_model(GELU)
    random = np.random.default_rng(0)
    for name, shape in (("w", (8, 16)), ("b", (16,)), ("v", (16, 4))):
        stand_in = next((item for item in model.graph.initializer if item.name == name), None)
        if stand_in is not None:
            model.graph.initializer.remove(stand_in)
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


FEEDS = {"x": np.ones((1, 3, 8), np.float32)}


def row(profile: Profile, name: str) -> Row:
    return next(item for item in profile.rows if item.name == name)


def test_what_was_fused_is_told_and_what_it_computes(tmp_path: Path) -> None:
    path = tmp_path / "gelu.onnx"
    onnx.save(gelu(), path)
    found = profile_model(path, [FEEDS], CPU, RunPlan(runs=3, warmup=1))
    assert found.runs == 3 and found.overall.plain is not None
    assert found.overall.plain.count >= 1
    fused = next(item for item in found.rows if item.op == "BiasGelu")
    assert set(fused.origins) == {"bias", "scale", "erf", "plus", "times", "halve"}
    assert fused.label == "com.microsoft::BiasGelu"
    first = row(found, "first")
    assert first.origins == ("first",)
    # [3, 8] x [8, 16], of which the weights are not in the trace.
    assert first.work.flops == 2 * 3 * 8 * 16
    assert first.inputs == (("float32", (1, 3, 8)), ("float32", (8, 16)))
    assert first.work.bytes_moved == 4 * (3 * 8 + 8 * 16 + 3 * 16)
    assert found.about.model == str(path) and found.about.sha256 is not None
    assert found.about.inputs == {"x": (1, 3, 8)} and found.about.threads == 1


def test_packed_weights_are_found_between_other_inputs() -> None:
    # ONNX Runtime makes one Gemm of it, packs w, and shows x and the bias as its inputs.
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 8] x) => (float[n, 16] y) <float[8, 16] w, float[16] b> {
            [first] p = MatMul (x, w)
            [bias] y = Add (p, b)
        }"""
    )
    for value in gelu().graph.initializer:
        if value.name in "wb":
            model.graph.initializer.append(value)
    found = profile_model(model, [{"x": np.ones((3, 8), np.float32)}], CPU, RunPlan(runs=2))
    (gemm,) = found.rows
    assert (gemm.op, gemm.origins) == ("Gemm", ("first", "bias"))
    assert gemm.inputs == (("float32", (3, 8)), ("float32", (8, 16)), ("float32", (16,)))
    assert gemm.work.flops == 2 * 3 * 8 * 16 + 3 * 16


def test_the_runs_of_a_block_are_profiled_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ortkit.Session(gelu(), "cpu") as session:
        plain = session.run(FEEDS)
        own = session.onnxruntime
        with session.profile(warmup=1) as recording:
            for _ in range(4):
                inside = session.run(FEEDS)
            with pytest.raises(UserError, match="has not ended"):
                _ = recording.result
        assert session.onnxruntime is own
        session.run(FEEDS)
        assert recording.result.runs == 3
        assert {item.call.count for item in recording.result.rows} == {3}
        assert any(len(one.origins) > 1 for one in recording.result.rows)
        np.testing.assert_array_equal(plain["y"], inside["y"])
    assert list(tmp_path.iterdir()) == []


def test_two_sessions_are_profiled_in_turns() -> None:
    with ortkit.Session(gelu(), "cpu") as a, ortkit.Session(gelu(), "cpu") as b:
        with a.profile() as of_a, b.profile() as of_b:
            for turn in range(5):
                a.run(FEEDS)
                if turn % 2:
                    b.run(FEEDS)
        assert (of_a.result.runs, of_b.result.runs) == (5, 2)


def test_an_error_within_the_block_puts_all_back() -> None:
    with ortkit.Session(gelu(), "cpu") as session:
        own = session.onnxruntime
        with pytest.raises(UserError, match="x"), session.profile():
            session.run({"x": np.ones((1, 3, 9), np.float32)})
        assert session.onnxruntime is own
        with pytest.raises(UserError, match="holds no run"), session.profile():
            pass
        assert session.onnxruntime is own
        session.run(FEEDS)


def test_a_session_that_is_closed_within_the_block_is_closed_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = ortkit.Session(gelu(), "cpu")
    recording = session.profile()
    with pytest.raises(UserError, match="closed"), recording:
        session.run(FEEDS)
        session.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="closed"):
        session.run(FEEDS)
    with pytest.raises(UserError, match="ended with an error"):
        _ = recording.result


def test_profiling_again_and_again_leaves_nothing_open() -> None:
    def files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    with ortkit.Session(gelu(), "cpu") as session:
        counts = []
        for _ in range(4):
            with session.profile():
                session.run(FEEDS)
            counts.append(files())
        assert counts[-1] <= counts[0]


def test_runs_agree_with_a_clock_around_them() -> None:
    size = 384
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[{size}, {size}] x) => (float[{size}, {size}] y) {{
            a = MatMul (x, x)  b = Softmax (a)  y = MatMul (b, x)
        }}"""
    )
    feeds = {"x": np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)}
    taken = []
    with ortkit.Session(model, "cpu", threads=1) as session, session.profile() as recording:
        for _ in range(15):
            started = time.perf_counter()
            session.run(feeds)
            taken.append(1e6 * (time.perf_counter() - started))
    # Both clocks see the same runs, whatever disturbs these; what surrounds a run is Python's.
    seen = recording.result.trace
    assert seen is not None
    differences = [mine - item.duration_us for mine, item in zip(taken, seen.runs, strict=True)]
    assert min(differences) >= -2
    assert np.median(differences) < 0.05 * np.median(taken) + 100


def test_inputs_that_do_not_run_give_way_to_the_next() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (int64[n] i) => (float[n] y) <float[3] t = {1, 2, 3}> { y = Gather (t, i) }"""
    )
    feeds = [{"i": np.array([7])}, {"i": np.array([2, 0])}]
    found = profile_model(model, feeds, CPU, RunPlan(runs=2, warmup=0))
    assert found.about.inputs == {"i": (2,)} and found.runs == 2
    with pytest.raises(RunError, match="indices"):
        profile_model(model, feeds[:1], CPU, RunPlan(runs=2))


def test_nodes_without_names_and_those_of_bodies_are_found(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[2, 3] x, bool c) => (float[2, 3] y)
        {
            a = Sigmoid (x)
            b = If (c) <
                then_branch = then () => (float[2, 3] p) { p0 = Tanh (a)  p = Sigmoid (p0) },
                else_branch = other () => (float[2, 3] q) { q = Neg (a) }
            >
            d = Sigmoid (b)
            y = Sigmoid (d)
        }"""
    )
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    settings = SessionSettings(target="cpu", threads=1, optimizations="off")
    found = profile_model(model, [feeds], settings, RunPlan(runs=2, warmup=0))
    tanh = next(one for one in found.rows if one.op == "Tanh")
    assert tanh.holder is not None and found.rows[tanh.holder].op == "If"
    assert tanh.work.bytes_moved == 2 * 24
    sigmoids = [item for item in found.rows if item.op == "Sigmoid"]
    assert len(sigmoids) == 4
    assert {sigmoid.work.bytes_moved for sigmoid in sigmoids} == {48}


def test_shapes_that_change_from_run_to_run_are_counted_each(tmp_path: Path) -> None:
    with ortkit.Session(gelu(), "cpu") as session, session.profile() as recording:
        for rows in (1, 2, 2, 5):
            session.run({"x": np.ones((1, rows, 8), np.float32)})
    first = row(recording.result, "first")
    assert first.shapes == 3 and first.inputs[0] == ("float32", (1, 2, 8))
    assert first.work.flops == 2 * 8 * 16 * (1 + 2 + 2 + 5) / 4


def test_a_model_in_memory_and_an_optimized_one_are_joined_too() -> None:
    with ortkit.Session(ortkit.optimize(gelu()), "cpu") as session:
        with session.profile() as recording:
            session.run(FEEDS)
        assert all(item.origins for item in recording.result.rows)
        assert recording.result.about.model is None


def test_without_provenance_the_trace_alone_speaks() -> None:
    with ortkit.Session(gelu(), "cpu") as session:
        with session.profile(provenance=False) as recording:
            session.run(FEEDS)
        first = row(recording.result, "first")
        assert first.origins == () and first.domain is None
        # The packed weights are not in the trace: what is moved is not guessed.
        assert first.work.flops is None and first.work.bytes_moved is None
        bias = next(item for item in recording.result.rows if item.op == "BiasGelu")
        assert bias.work.bytes_moved == 4 * (3 * 16 + 16 + 3 * 16)


def test_a_trace_made_elsewhere_is_joined_with_its_model(tmp_path: Path) -> None:
    path = tmp_path / "gelu.onnx"
    onnx.save(gelu(), path)
    with ortkit.Session(path, "cpu", trace_prefix=tmp_path / "trace") as session:
        for _ in range(3):
            session.run(FEEDS)
        trace = Path(session.onnxruntime.end_profiling())
    found = profile_saved(trace, path, warmup=1)
    assert found.runs == 2 and row(found, "first").work.flops == 2 * 3 * 8 * 16
    assert any("without tracing is not known" in note for note in found.notes)
    alone = profile_saved(trace, None)
    assert row(alone, "first").work.flops is None
    assert any("name the model too" in note for note in alone.notes)
    with pytest.raises(ModelError):
        profile_saved(trace, tmp_path / "none.onnx")


def test_a_model_that_does_not_belong_to_the_trace_adds_nothing(tmp_path: Path) -> None:
    other = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 8] x) => (float[n, 8] y) { [first] y = Relu (x) }"""
    )
    nodes = read_trace(
        written(tmp_path, node("MatMul", 110, 5, name="first", index=0), run(100, 50))
    ).nodes
    found = joined_with(nodes, other, CPU)
    assert found is not None
    assert list(found.work) == [None] and list(found.origins) == [()]


def test_a_classifier_whose_output_is_a_sequence_of_maps() -> None:
    """As skl2onnx writes them; onnx-ir has no class for the type."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
        g (float[2, 3] x) => (seq(map(int64, float)) y) {
            [scores] p = Softmax (x)
            [zip] y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2]> (p)
        }"""
    )
    found = profile_model(model, [{"x": np.ones((2, 3), np.float32)}], CPU, RunPlan(runs=2))
    assert row(found, "scores").work.flops is not None
    assert row(found, "zip").label == "ai.onnx.ml::ZipMap"


def test_one_thread_has_no_pool_to_speak_of(tmp_path: Path) -> None:
    found = traced(gelu(), FEEDS, 1, tmp_path)
    assert len(found.nodes)
    with ortkit.Session(gelu(), "cpu", threads=1) as session, session.profile() as recording:
        session.run(FEEDS)
    assert recording.result.about.threads == 1


def test_how_often_is_checked() -> None:
    with pytest.raises(UserError, match="0 runs show nothing"):
        RunPlan(runs=0)
    with pytest.raises(UserError, match="-1 runs cannot be left out"):
        RunPlan(warmup=-1)


def test_peaks_are_asked_for_with_what_ran() -> None:
    asked = []

    def peaks_of(provider: str, threads: int) -> tuple[Peaks | None, str]:
        asked.append((provider, threads))
        return None, "the peaks are not known: no room"

    found = profile_model(gelu(), [FEEDS], CPU, RunPlan(runs=1), peaks_of=peaks_of)
    assert asked == [("CPUExecutionProvider", 1)]
    assert "the peaks are not known: no room" in found.notes

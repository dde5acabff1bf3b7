"""What a trial says: inputs of usual sizes, shares applied to times, bounds with their basis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import models
from ortkit.errors import UserError
from ortkit.measure.inputs import shapes_in, write_inputs
from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.trial import outlook as outlook_module
from ortkit.trial.outlook import Facts, outlook
from ortkit.trial.result import Latency
from ortkit.trial.trial import TrialOptions, _ceiling, _holders, try_model
from tests.runtime.traces import node, run, written

FACTS = Facts(
    milliseconds=10.0, heavy_share=0.8, ops=frozenset({"MatMul"}), calls=100,
    flops=10**10, parameters=10**8,
)  # fmt: skip
TAKEN = {"FusedMatMul": 4000, "Add": 2000, "Conv": 1000}


def profile(folder: Path, taken: dict[str, int] = TAKEN) -> Profile:
    """Return the profile of a run of 10 ms with a node of each operator, in microseconds."""
    starts = [1 + sum([*taken.values()][:index]) for index in range(len(taken))]
    nodes = [node(op, start, taken[op]) for op, start in zip(taken, starts, strict=True)]
    return profile_of(read_trace(written(folder, *nodes, run(0, 10_000))), warmup=0)


def test_inputs_have_usual_sizes_and_shorter_ones_follow(tmp_path: Path) -> None:
    model = ir.from_proto(models.build("bert"))
    paths = write_inputs(model, None, {}, tmp_path)
    shapes = [shapes_in(path)["input_ids"] for path in paths]
    assert shapes[:3] == [(1, 128), (1, 64), (1, 16)]
    given = write_inputs(model, None, {"sequence": 9}, tmp_path)
    assert shapes_in(given[0])["input_ids"] == (1, 9)


def test_images_are_of_usual_size(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[batch, 3, height, width] x) => (float[batch, 3, height, width] y)
        { y = Relu(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert shapes_in(write_inputs(model, None, {}, tmp_path)[0]) == {"x": (1, 3, 224, 224)}


def test_the_ceiling_is_the_share_of_heavy_operators(tmp_path: Path) -> None:
    found = _ceiling(Latency(8.0, 7.0, 10), profile(tmp_path))
    assert found is not None
    assert found.heavy_share == pytest.approx(0.5)
    assert found.milliseconds == pytest.approx(4.0)
    assert found.speedup == pytest.approx(2.0)
    assert found.heavy_ops == ("FusedMatMul", "Conv")
    assert _ceiling(Latency(8.0, 7.0, 10), profile(tmp_path, {"Add": 1000})) is None


def test_holders_add_up_to_the_measured_time(tmp_path: Path) -> None:
    holders = _holders(Latency(8.0, 7.0, 10), profile(tmp_path))
    assert [holder.op for holder in holders] == ["FusedMatMul", "(runtime)", "Add", "Conv"]
    assert sum(item.share for item in holders) == pytest.approx(1.0)
    assert sum(one.milliseconds for one in holders) == pytest.approx(8.0)


def test_int8_is_bounded_by_the_heavy_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, left in (({"avx2"}, 0.2 + 0.8 / 2), ({"avx2", "avx512_vnni"}, 0.2 + 0.8 / 4)):
        monkeypatch.setattr(outlook_module, "_cpu_flags", lambda flags=flags: frozenset(flags))
        int8 = outlook(FACTS)[0]
        assert int8.known == "bound"
        assert int8.milliseconds == pytest.approx(10 * left)
        assert int8.speedup == pytest.approx(1 / left)
    monkeypatch.setattr(outlook_module, "_cpu_flags", frozenset)
    assert outlook(FACTS)[0].known == "not known"


def test_bf16_is_for_processors_that_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, known in (({"avx2"}, "no gain"), ({"avx512_bf16"}, "not known")):
        monkeypatch.setattr(outlook_module, "_cpu_flags", lambda flags=flags: frozenset(flags))
        (bf16,) = (item for item in outlook(FACTS) if item.what.startswith("bf16"))
        assert bf16.known == known
        assert ("--precision bf16" in bf16.basis) == (known == "not known")


def test_a_gpu_is_bounded_by_the_slowest_of_three() -> None:
    a10 = next(item for item in outlook(FACTS) if item.what == "NVIDIA A10, fp32")
    # 10 GFLOP at 31.2 TFLOP/s, 400 MB at 600 GB/s, 100 kernels at 5 µs.
    assert a10.milliseconds == pytest.approx(max(10 / 31.2, 400 / 600, 0.5))
    assert a10.speedup == pytest.approx(10 / a10.milliseconds)


@pytest.mark.parametrize("extra", [("QLinearConv",), ()])
def test_no_gain_is_said_where_there_is_none(extra: tuple[str, ...]) -> None:
    facts = Facts(1.0, 0.5 if extra else 0.0, frozenset(extra), 1, 0, 0)
    found = outlook(facts)
    assert found[0].known == "no gain"
    assert {item.known for item in found[3:]} == {"not known"}


def test_a_trial_without_time_or_feedable_inputs_still_answers(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (seq(float[n]) s) => (float[m] y) { y = ConcatFromSequence<axis=0>(s) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    found = try_model(tmp_path / "m.onnx", TrialOptions(level=0, seconds=60))
    assert (found.before, found.speedup, found.outlook) == (None, None, ())
    assert any("cannot be fed for timing" in note for note in found.notes)
    assert found.checked.verdict in ("yes", "not possible"), found.checked.reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_given_inputs_are_run(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x) => (float[n] y) { y = Tanh(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones(5, np.float32))
    options = TrialOptions(level=0, seconds=120, inputs=tmp_path / "in.npz")
    found = try_model(tmp_path / "m.onnx", options)
    assert found.inputs == {"x": (5,)}
    assert found.before is not None and found.before.rounds > 1
    assert found.checked.verdict == "yes"


def test_too_little_time_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be"):
        TrialOptions(seconds=1)

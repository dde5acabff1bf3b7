"""What loading and running take, against what an independent program counts."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from ortkit.errors import ModelError, RunError
from ortkit.runtime.memory import point
from ortkit.runtime.memory.node_table import NodeMemory
from ortkit.runtime.memory.point import PointPlan, measure_point
from ortkit.runtime.memory.point_child import PointJob, Stages
from ortkit.runtime.tensor_files import of_plain, write_manifest

CPU = {"target": "cpu"}
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y) {{ a = Exp (x)  b = Neg (x)  y = Mul (a, b) }}"""
#: Runs a program and prints the most that it had resident: what /usr/bin/time does. A small
#: program of its own, because a child begins with the peak of the process that made it.
TIMED = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
print(os.wait4(child, 0)[2].ru_maxrss)
"""
#: Prints the peak of a job that it does.
MEASURED = """
import pickle, sys
from pathlib import Path
from ortkit.runtime.memory.point_child import measure_stages
found = measure_stages(pickle.loads(Path(sys.argv[1]).read_bytes()))
peaks = [each[0].process.peak for each in (found.loaded, found.first, found.last)]
print(max(peaks) // 1024, flush=True)
"""


def feeds(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    pairs = enumerate(arrays.items())
    write_manifest(folder, [of_plain(name, index, item, folder) for index, (name, item) in pairs])
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL.format()), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_point_is_what_the_tensors_are(model: Path, tmp_path: Path) -> None:
    x = np.ones(8 << 20, np.float32)
    plan = PointPlan(model, feeds(tmp_path / "f", x=x), CPU, seconds=0.0, nodes=True)
    point = measure_point(plan)
    arena = point.first.arena("Cpu")
    assert arena is not None
    assert arena.peak == pytest.approx(3 * x.nbytes, rel=0.05)
    assert point.output_bytes == x.nbytes
    assert point.loaded.arena("Cpu").peak == 0  # type: ignore[union-attr]
    if point.peak_is_reset:
        assert point.first.process is not None and point.loaded.process is not None
        grown = point.first.process.peak - point.loaded.process.resident
        # Three in the arena, and the array that the caller gets may be a fourth.
        assert 0.95 * 3 * x.nbytes < grown < 1.05 * 4 * x.nbytes
    assert isinstance(point.nodes, NodeMemory)
    (peak,) = point.nodes.peaks
    assert peak.bytes == pytest.approx(3 * x.nbytes, rel=0.05)
    assert {tensor.name for tensor in peak.tensors} == {"a", "b", "y"}
    assert (peak.node, peak.op) == (point.nodes.nodes[-1].name, "Mul")
    assert peak.unexplained == 0
    assert json.loads(json.dumps(point.to_json()))["peaks"][0]["op"] == "Mul"


def test_the_peak_agrees_with_another_program(model: Path, tmp_path: Path) -> None:
    x = np.ones(20 << 20, np.float32)
    plan = PointPlan(model, feeds(tmp_path / "f", x=x), CPU, seconds=0.0)
    (tmp_path / "job").write_bytes(pickle.dumps(PointJob(plan)))
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "job")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", TIMED, *command], capture_output=True, text=True, check=True
    )
    peak, most = (1024 * int(line) for line in done.stdout.splitlines())
    assert peak == pytest.approx(most, rel=0.05)
    assert most > 3 * x.nbytes


def test_weights_that_are_loaded_are_seen(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).random((4096, 2048), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 4096])],
        [helper.make_tensor_value_info("y", 1, ["n", 2048])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "w.onnx")
    one = feeds(tmp_path / "f", x=np.ones((1, 4096), np.float32))
    point = measure_point(PointPlan(tmp_path / "w.onnx", one, CPU, seconds=0.0))
    assert point.nodes is None
    assert point.loaded.process is not None
    grown = point.loaded.process.resident - point.before.resident
    assert grown > 0.95 * weight.nbytes
    assert point.peak_resident is not None
    assert point.peak_resident >= point.before.resident + 0.95 * weight.nbytes


def test_two_sessions_hold_twice_and_share_if_told(model: Path, tmp_path: Path) -> None:
    folder = feeds(tmp_path / "f", x=np.ones(1 << 20, np.float32))
    plans = {
        "one": PointPlan(model, folder, CPU, seconds=0.0),
        "two": PointPlan(model, folder, CPU, sessions=2, seconds=0.0),
        "shared": PointPlan(
            model, folder, {**CPU, "shared_arena": True}, {"arena_extend_strategy": 0},
            sessions=2, seconds=0.0,
        ),
    }  # fmt: skip
    held = {name: measure_point(plan).held for name, plan in plans.items()}
    assert held["one"] is not None
    assert held["two"] == 2 * held["one"]
    assert held["shared"] == held["one"]


def test_shrinkage_gives_back_what_is_held(model: Path, tmp_path: Path) -> None:
    folder = feeds(tmp_path / "f", x=np.ones(1 << 22, np.float32))
    config = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    plain = measure_point(PointPlan(model, folder, CPU, seconds=0.0))
    shrunk = measure_point(PointPlan(model, folder, CPU, run_config=config, seconds=0.0))
    before, after = plain.last.arena("Cpu"), shrunk.last.arena("Cpu")
    assert before is not None and after is not None
    assert before.shrinkages == 0 < after.shrinkages
    assert after.held < before.held


def test_what_does_not_run_is_one_line(model: Path, tmp_path: Path) -> None:
    wrong = feeds(tmp_path / "f", x=np.ones(4, np.float64))
    with pytest.raises(RunError, match=r"input 'x' is float64") as refused:
        measure_point(PointPlan(model, wrong, CPU))
    assert "\n" not in str(refused.value)
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07garbage")
    with pytest.raises((RunError, ModelError), match=r"bad\.onnx"):
        measure_point(PointPlan(tmp_path / "bad.onnx", wrong, CPU))


def test_a_limit_that_is_too_low_is_out_of_memory(model: Path, tmp_path: Path) -> None:
    folder = feeds(tmp_path / "f", x=np.ones(1 << 22, np.float32))
    settings = {**CPU, "shared_arena": True}
    with pytest.raises(RunError, match=r"Available memory of \d+ is smaller"):
        measure_point(PointPlan(model, folder, settings, {"max_mem": 1 << 20}))


def test_a_run_that_does_not_end_is_given_up(model: Path, tmp_path: Path) -> None:
    folder = feeds(tmp_path / "f", x=np.ones(4, np.float32))
    with pytest.raises(RunError, match="did not end within 0 seconds"):
        measure_point(PointPlan(model, folder, CPU, timeout_seconds=0.2))


def on_a_full_disk(job: PointJob) -> Stages:
    raise OSError(28, "No space left on device")


def test_what_stops_the_process_is_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "measure_stages", on_a_full_disk)
    folder = feeds(tmp_path / "f", x=np.ones(4, np.float32))
    with pytest.raises(RunError, match="No space left"):
        measure_point(PointPlan(model, folder, CPU))

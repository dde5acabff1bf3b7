"""A short timing: a ratio that says something, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from ortkit.measure import short_timing
from ortkit.measure.short_timing import ShortRequest, ShortTiming, seconds_after, time_shortly
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.runtime.machine import LoadWatch, MachineLoad
from ortkit.runtime.timing.variants import Variant

IDLE = MachineLoad(2, 0.0, 0.0, 0.0, 0.0, None)


def model_of(count: int, path: Path, size: int = 2000) -> Path:
    """Save a chain of `count` Sin of float32[size]."""
    values = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size]) for name in "xy"]
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    nodes = [oh.make_node("Sin", [names[at]], [names[at + 1]]) for at in range(count)]
    graph = oh.make_graph(nodes, "chain", values[:1], values[1:])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[[int, int], ShortRequest]:
    def made(before: int, after: int) -> ShortRequest:
        models = [model_of(count, tmp_path / f"{count}.onnx") for count in (before, after)]
        return ShortRequest(models[0], Variant(models[1]), tmp_path)

    return made


def test_fewer_nodes_are_faster(
    request_for: Callable[[int, int], ShortRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadWatch, "found", lambda _: IDLE)
    monkeypatch.setattr(short_timing, "_TURN_SECONDS", 0.005)
    monkeypatch.setattr(short_timing, "_MOST_ROUNDS", 3)
    # The fastest of three turns: other work disturbs one of them.
    turn = short_timing._turn
    monkeypatch.setattr(short_timing, "_turn", lambda *given: min(turn(*given) for _ in range(3)))
    found = time_shortly(request_for(200, 5), 60.0)
    assert found.problem == ""
    assert found.speedup is not None
    assert found.speedup.direction == "faster"
    assert found.speedup.ratio > 3
    assert found.rounds == 6
    assert (found.inputs, found.where) == ({"x": (2000,)}, "2 cores")
    assert replace(found, threads=1).where == "1 thread"


@pytest.mark.parametrize(
    ("others", "noise"), [(None, 0.05), (0.0, 0.05), (0.5, 1 / 3), (1.0, 1.0), (2.5, 19.0)]
)
def test_what_others_use_is_noise(others: float | None, noise: float) -> None:
    """It may all be taken from one of the two."""
    load = replace(IDLE, others_cpus=others)
    assert short_timing._noise(load, 2) == pytest.approx(noise)
    assert short_timing._noise(load, 1) == pytest.approx(max(0.1, noise))


def test_a_second_pair_of_processes_needs_time(
    request_for: Callable[[int, int], ShortRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes 20 s: there are 110 for five in one pair, not 120 for three in each of two."""
    monkeypatch.setattr(short_timing, "_TURN_SECONDS", 10.0)
    monkeypatch.setattr(short_timing, "_MOST_ROUNDS", 5)
    monkeypatch.setattr(short_timing, "_turn", lambda worker, *_: float(worker.pid))
    found = time_shortly(request_for(5, 4), 110 / 1.5)
    assert found.rounds == 5
    assert found.noise >= 0.1


def test_what_takes_too_long_is_not_timed(
    request_for: Callable[[int, int], ShortRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(5, 4)
    late = time_shortly(request, 0.001)
    assert late.problem == "to load and to run both models takes too long"
    monkeypatch.setattr(short_timing, "_TURN_SECONDS", 30.0)
    problem = time_shortly(request, 20.0).problem
    assert re.match(r"to load both models takes \d+\.\d s, and a run \d", problem), problem


def test_a_result_that_does_not_load_is_not_timed(
    request_for: Callable[[int, int], ShortRequest], tmp_path: Path
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    request = replace(request_for(5, 4), result=Variant(tmp_path / "broken.onnx"))
    found = time_shortly(request, 5.0)
    assert "broken.onnx" in found.problem or "INVALID" in found.problem
    assert found.speedup is None


def test_longer_work_gets_more_time() -> None:
    assert [seconds_after(taken) for taken in (1.0, 10.0, 20.0, 600.0)] == [1.5, 1.5, 3.0, 5.0]


def test_what_cannot_be_timed_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is timed by default, and nothing where that says nothing."""
    source = model_of(3, tmp_path / "m.onnx")
    options = OptimizeOptions(level=0, verify=False, check_load=False, timing=True)
    assert optimize(source, replace(options, timing=False)).report.timing is None
    unchanged = optimize(source, options).report
    assert unchanged.timing == ShortTiming("nothing was rewritten")
    on_cuda = optimize(source, replace(options, target="cuda")).report
    assert on_cuda.timing == ShortTiming("models for cuda are not timed here")
    assert on_cuda.to_json()["timing"] is not None

    weight = onnx.numpy_helper.from_array(np.ones(2000, np.float32), "w")
    model = onnx.load(source)
    model.graph.initializer.append(weight)
    model.graph.node[0].CopyFrom(oh.make_node("Mul", ["x", "w"], ["v0"]))
    model.graph.node[1].CopyFrom(oh.make_node("Identity", ["v0"], ["v1"]))
    monkeypatch.setattr(short_timing, "_LOADED_BYTES_A_SECOND", 4000.0)
    heavy = optimize(model, options).report
    assert heavy.timing == ShortTiming("weights of 0 MB take long to load")

"""Kernels for a processor that this machine is not: built and saved, never run here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit import OptimizeOptions, UserError, optimize
from ortkit.targets import cpu

HIGHER = "x86-64-v4"

pytestmark = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


def model() -> onnx.ModelProto:
    """A matrix product, a bias and an erf-GELU, wide enough to pay."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 512)), "b": rng.standard_normal(512)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Gelu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 512])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def lower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes this machine for a v2, and libraries for v4 name a level that no shim knows."""
    flags = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
    monkeypatch.setattr(cpu, "_cpu_flags", lambda: flags)
    monkeypatch.setitem(cpu.LEVELS, HIGHER, cpu.LEVELS["x86-64-v4-amx"] + 1)


def test_what_cannot_run_here_is_verified_without_it(lower_machine: None, tmp_path: Path) -> None:
    optimized = optimize(model(), OptimizeOptions(cpu=HIGHER))
    report = optimized.report
    assert report.verification is not None
    assert report.verification.verdict == "partly"
    (gap,) = report.verification.not_compared
    assert (gap.what, gap.needs_hardware) == ("1 kernel", True)
    assert "need a processor of level" in gap.reason
    assert report.verification.lacks_hardware_only
    assert report.rolled_back == ()
    assert report.kernel_note == (f"kernels for {HIGHER} do not run on this machine, an x86-64-v2")
    saved = optimized.save(tmp_path / "model.onnx")
    (library,) = [path for path in saved if path.suffix == ".so"]
    with pytest.raises(Exception, match="these kernels need a processor of level"):
        ort.SessionOptions().register_custom_ops_library(str(library))


def test_what_runs_here_is_run(tmp_path: Path) -> None:
    optimized = optimize(model(), OptimizeOptions(cpu="x86-64"))
    assert optimized.library is not None
    assert optimized.report.kernel_note == ""
    assert optimized.report.verification is not None
    assert optimized.report.verification.verdict == "yes"


def test_what_cannot_run_here_cannot_be_measured(lower_machine: None) -> None:
    options = replace(OptimizeOptions(cpu=HIGHER), measure=True)
    with pytest.raises(UserError, match=f"measure: kernels for {HIGHER} do not run.*leave"):
        optimize(model(), options)


def test_levels_in_order(lower_machine: None) -> None:
    assert [level for level in cpu.LEVELS if cpu.runs_here(level)] == ["x86-64", "x86-64-v2"]
    assert cpu.runs_here("native")

"""Tables of functions of bytes: computed in another process, left out with a reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ortkit
from ortkit.fusion.int8 import lookup
from ortkit.fusion.int8.lookup_child import Outcome, TablesJob

pytestmark = pytest.mark.usefixtures("int8_level")


def crash(_: TablesJob) -> tuple[Outcome, ...]:
    """End the process as a fault of native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return ()


def model() -> onnx.ModelProto:
    """A rounded product and its Sigmoid, rounded too."""
    random = np.random.default_rng(0)
    held = {
        "w": random.integers(-128, 128, (64, 48), dtype=np.int8), "ws": np.float32(0.02),
        "xs": np.float32(0.03), "z": np.uint8(120), "ys": np.float32(0.2), "gs": np.float32(0.004),
        "none": np.uint8(0), "wz": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"]),
        helper.make_node("MatMul", ["xf", "wf"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "z"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["s"]),
        helper.make_node("QuantizeLinear", ["s", "gs", "none"], ["g"]),
        helper.make_node("DequantizeLinear", ["g", "gs", "none"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 64])],
        [helper.make_tensor_value_info("y", 1, ["n", 48])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_crash_leaves_the_operators_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lookup, "tables", crash)
    monkeypatch.setattr(lookup, "_KNOWN", {})
    made = ortkit.optimize(model(), ortkit.OptimizeOptions(verify=False, check_load=False))
    made.save(tmp_path / "made.onnx")
    assert "Gather" not in {
        node.op_type for each in onnx.load(tmp_path / "made.onnx").functions for node in each.node
    }
    misses = [miss.reason for miss in made.report.misses]
    assert any("no table of a function of bytes: the process crashed" in item for item in misses)

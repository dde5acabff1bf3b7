"""The option `measure` of OrtkitExecutionProvider: groups are timed while a session is made."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import ortkit
from ortkit.kernels.build.library import missing_toolchain
from ortkit.provider.own import measured
from ortkit.provider.own.building import build
from ortkit.provider.own.measured import group_model, slow_groups
from ortkit.provider.own.measured_child import GroupTimes, TimedGroup
from ortkit.provider.own.options import NAME
from ortkit.provider.own.planning import plan
from ortkit.provider.registration import registered_providers
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason="no kernel toolchain")

# Two groups around an operator that is never claimed.
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[batch, 64] x, int64 axis) => (float[batch, 64] y) {
  a = Mul (x, w)  b = Softmax (a)  c = CumSum (b, axis)  d = Exp (c)  y = Tanh (d)
}"""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    if NAME not in registered_providers():
        ortkit.register_provider()
    yield
    gc.collect()  # sessions of the tests
    ortkit.unregister_provider(NAME)


def proto() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(numpy_helper.from_array(np.linspace(0, 1, 64, dtype="f4"), "w"))
    return onnx.shape_inference.infer_shapes(made)  # ONNX Runtime tells the type of each value


def claimed(cache: Path, **options: str) -> set[str]:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    given = {"cache_dir": str(cache), "level": "3", "strict": "1", **options}
    settings.add_provider_for_devices(devices, given)
    session = ort.InferenceSession(proto().SerializeToString(), settings)
    parts = session.get_provider_graph_assignment_info()
    return {n.op_type for part in parts if part.ep_name == NAME for n in part.get_nodes()}


def test_groups_are_timed_beside_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = build(plan(ir.from_proto(proto()), Target(), 3), Target(), "auto", tmp_path)
    assert found.library is not None
    timed: list[Any] = []
    run = measured._timed

    def recording(*given: Any) -> Any:
        timed.extend(run(*given))
        return timed

    monkeypatch.setattr(measured, "_timed", recording)
    slow_groups(found.plan.claims, found.library)
    symbols = {claim.program.symbol for claim in found.plan.claims}
    assert len(symbols) == 2
    assert {item.symbol for item in timed} == symbols
    assert [one.problem for one in timed] == ["", ""]
    for one in timed:
        assert len(one.nodes) == len(one.program) == 6
        assert min(*one.nodes, *one.program) > 0


def test_what_does_not_pay_is_left_and_that_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def timed(groups: Sequence[TimedGroup]) -> list[GroupTimes]:
        calls.append(len(groups))
        times = {"Softmax": (1.0, 1.0), "Tanh": (2.0, 1.0)}
        return [
            GroupTimes(group.symbol, (before,) * 6, (after,) * 6)
            for group in groups
            for before, after in [times[onnx.load(group.model).graph.node[-1].op_type]]
        ]

    monkeypatch.setattr(measured, "_timed", timed)
    assert claimed(tmp_path) == {"Mul", "Softmax", "Exp", "Tanh"}
    assert calls == []
    for _ in range(2):
        assert claimed(tmp_path, measure="1") == {"Exp", "Tanh"}
    assert calls == [2]


def test_what_cannot_be_timed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(groups: Sequence[TimedGroup]) -> list[GroupTimes]:
        return [GroupTimes(groups[0].symbol, problem="no")]

    monkeypatch.setattr(measured, "_timed", timed)
    assert claimed(tmp_path, measure="1") == {"Mul", "Softmax", "Exp", "Tanh"}


def test_a_group_is_a_model_with_its_constants() -> None:
    model = ir.from_proto(proto())
    (claim,) = (item for item in plan(model, Target(), 3).claims if "b" in item.outputs)
    alone = ir.to_proto(group_model(claim))
    onnx.checker.check_model(alone)
    assert [node.op_type for node in alone.graph.node] == ["Mul", "Softmax"]
    assert [value.name for value in alone.graph.input] == ["x"]
    assert [tensor.name for tensor in alone.graph.initializer] == ["w"]
    assert [value.name for value in alone.graph.output] == ["b"]
    assert [node.op_type for node in model.graph][:2] == ["Mul", "Softmax"]

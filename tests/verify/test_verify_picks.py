"""Models that pick inside: other picks among equals are no error, all else behind them is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from small_models import model

from ortkit.graph.io.open import open_model
from ortkit.kernels.signature import DOMAIN
from ortkit.verify.verifier import Verifier

#: Each picks by `v`; `w` moves one of two values that are as good as equal.
PICKING = {
    "TopK": "t, i = TopK <axis = 0> (v, k) g = Gather(rows, i) c = Unsqueeze(t, last)",
    "ArgMax": "i = ArgMax <axis = 0, keepdims = 1> (v) g = Gather(rows, i) c = Gather(v, i)",
    "NonMaxSuppression": """
      r = Unsqueeze(v, ends) i = NonMaxSuppression(corners, r, k, zero, zero)
      j = Gather <axis = 1> (i, third) g = Gather(rows, j) d = Gather(v, j)
      c = Unsqueeze(d, last)""",
}
KIND = pytest.mark.parametrize("kind", PICKING)


def picking(kind: str, offset: float, factor: float = 1.0) -> ir.Model:
    """Return a model that gives the rows that it picks, times a factor."""
    text = f"""g (float[6] x) => (float y) {{
      v = Add(x, w) {PICKING[kind]} h = Mul(g, factor) s = Sum(h, c) y = Neg(s)
    }}"""
    text = text.replace("(float y)", "(float[d, 4] y)")
    w = np.zeros(6, np.float32)
    w[4] = offset
    places = np.arange(6, dtype=np.float32)[:, None]
    weights = {
        "w": w, "k": np.array([3]), "last": np.array([1]), "ends": np.array([0, 1]),
        "third": np.array(2), "zero": np.zeros(1, np.float32),
        "corners": np.concatenate([places, places, places + 0.9, places + 0.9], axis=1)[None],
        "rows": np.arange(24, dtype=np.float32).reshape(6, 4),
        "factor": np.array(factor, np.float32),
    }  # fmt: skip
    return model(text, {name: array for name, array in weights.items() if name in text})


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Return inputs of which two are as good as equal, and picked."""
    np.savez(tmp_path / "in.npz", x=np.array([0.1, 0.9, 0.2, 0.3, 0.9, 0.05], np.float32))
    return tmp_path / "in.npz"


@KIND
def test_another_pick_among_equals_is_no_error(kind: str, inputs: Path) -> None:
    with Verifier(picking(kind, -1e-7), inputs=inputs) as verifier:
        found = verifier.check(picking(kind, 1e-7))
    assert found.is_good, found.reason
    assert found.reason.endswith("; on the original's picks: i")
    assert (found.near_ties > 0) == (kind != "NonMaxSuppression")


@KIND
@pytest.mark.parametrize(("offset", "factor"), [(0.01, 1.0), (1e-7, 1.001)])
def test_another_pick_and_other_results_of_it_are_errors(
    kind: str, offset: float, factor: float, inputs: Path
) -> None:
    with Verifier(picking(kind, -1e-7), inputs=inputs) as verifier:
        assert not verifier.check(picking(kind, offset, factor)).is_good


def test_a_pick_of_another_rule_is_no_pick_that_is_shared(inputs: Path) -> None:
    original, other = picking("TopK", 0.0), picking("TopK", 0.0)
    node = next(node for node in other.graph if node.op_type == "TopK")
    node.attributes["largest"] = ir.AttrInt64("largest", 0)
    with Verifier(original, inputs=inputs) as verifier:
        assert not verifier.check(other).is_good


def test_a_fused_node_picks_as_its_body_does(inputs: Path) -> None:
    """The node has fewer inputs than the operator: its limits are in the body."""
    with Verifier(picking("NonMaxSuppression", -1e-7), inputs=inputs) as verifier:
        found = verifier.check(_fused(picking("NonMaxSuppression", 1e-7)))
        other = verifier.check(_fused(picking("NonMaxSuppression", 1e-7, 1.001)))
    assert found.is_good, found.reason
    assert found.reason.endswith("; on the original's picks: i")
    assert not other.is_good


def _fused(picker: ir.Model) -> ir.Model:
    """Put the selection into a function of `ortkit.fused`, with its limits."""
    proto = ir.to_proto(picker)
    (node,) = (node for node in proto.graph.node if node.op_type == "NonMaxSuppression")
    function = onnx.FunctionProto(
        name="selects", domain=DOMAIN, input=node.input[:2], output=node.output
    )
    function.opset_import.add(domain="", version=picker.opset_imports[""])
    limits = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in dict.fromkeys(node.input[2:]):
        made = helper.make_node("Constant", [], [name], value=limits[name])
        function.node.append(made)
    function.node.add().CopyFrom(node)
    node.CopyFrom(helper.make_node("selects", node.input[:2], node.output, domain=DOMAIN))
    proto.functions.append(function)
    proto.opset_import.add(domain=DOMAIN, version=1)
    return open_model(proto)

"""Quantized originals: what neighbouring steps move is allowed, what is wrong is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.verify.nudged import write_nudged
from ortkit.verify.verifier import Verifier

HEADER = '<ir_version: 9, opset_import: ["" : 19]>'
STATIC = """g (float[4, 16] x) => (float[4, 16] y)
<float s = {0.03}, float t = {0.008}, uint8 z = {128}, uint8 w = {0}> {
  q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  p = Softmax(d)
  r = QuantizeLinear(p, t, w)  y = DequantizeLinear(r, t, w)
}"""
DYNAMIC = """g (float[4, 16] x) => (float[4, 16] y) {
  q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z)
}"""


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(f"{HEADER} {text}"), path)
    return path


@pytest.mark.parametrize("text", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_a_step_more_or_less_is_no_fault(text: str, tmp_path: Path) -> None:
    def scaled(by: float) -> Path:
        first = f"k = Constant<value_float = {by}>()  v = Mul(x, k)"
        changed = text.replace("{\n", f"{{\n  {first}\n").replace("Linear(x", "Linear(v")
        return saved(changed, tmp_path / f"{by}.onnx")

    with Verifier(saved(text, tmp_path / "m.onnx")) as verifier:
        # Some numbers fall to the next step, as an epsilon in front of them may make them.
        near = verifier.check(scaled(1.001))
        assert near.verdict == "yes"
        assert near.outputs[0].max_error_eps > 1000
        assert "the original is quantized" in near.reason
        assert verifier.check(scaled(1.5)).verdict == "no"


def test_only_quantized_models_are_nudged(tmp_path: Path) -> None:
    plain = saved("g (float[2] x) => (float[2] y) { y = Relu(x) }", tmp_path / "m.onnx")
    assert write_nudged(plain, tmp_path / "nudged") is None
    assert not (tmp_path / "nudged").exists()
    nested = saved(
        """g (bool c, float[2] x) => (float[2] y)
        <float s = {0.03}, uint8 z = {128}> {
          y = If (c) <
            then_branch = t () => (float[2] a) { q = QuantizeLinear(x, s, z)
                                                 a = DequantizeLinear(q, s, z) },
            else_branch = e () => (float[2] b) { b = Identity(x) }
          >
        }""",
        tmp_path / "nested.onnx",
    )
    made = write_nudged(nested, tmp_path / "nudged")
    assert made is not None
    onnx.checker.check_model(onnx.load(made), full_check=True)
    body = onnx.load(made).graph.node[0].attribute[0].g
    assert [node.op_type for node in body.node].count("Mul") == 1


def test_steps_are_moved_both_ways(tmp_path: Path) -> None:
    made = write_nudged(saved(STATIC, tmp_path / "m.onnx"), tmp_path / "nudged")
    assert made is not None
    nodes = onnx.load(made).graph.node
    factors = [
        float(onnx.numpy_helper.to_array(node.attribute[0].t))
        for node in nodes
        if node.op_type == "Constant"
    ]
    assert np.sign(np.array(factors) - 1).tolist() == [1, -1]

"""Names of generated operators for people; JSON."""

from __future__ import annotations

import json
import math

import onnx_ir as ir
import pytest

from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.text import json_text, kind_of_op, with_short_keys

SOURCE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) {
  ["/block/act/Erf"] e = Erf (x)
  ["/block/act/Mul"] "/block/act/Mul_output_0" = Mul (e, x)
  ["/block/Softmax"] "/block/Softmax_output_0" = Softmax ("/block/act/Mul_output_0")
  ["/Softmax"] s = Softmax ("/block/Softmax_output_0")
  ["/Neg"] t = Neg (s)
  ["/Mul"] y = Mul (s, t)
}"""

FUSED = "ortkit.fused::"


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["Add", f"{FUSED}gelu_0123456789ab"], ["Add", f"{FUSED}gelu"]),
        (
            [f"{FUSED}product_b01a9855222a", f"{FUSED}product_b5faee38957f (2 nodes)"],
            [f"{FUSED}product_b01a", f"{FUSED}product_b5fa (2 nodes)"],
        ),
        (
            [f"{FUSED}add_123456789abc", f"{FUSED}add_12345f000000", f"{FUSED}mul_123456789abc"],
            [f"{FUSED}add_123456", f"{FUSED}add_12345f", f"{FUSED}mul"],
        ),
        (["my::op_0123456789ab", "w_0123456789ab"], ["my::op_0123456789ab", "w_0123456789ab"]),
    ],
)
def test_keys_are_as_long_as_tells_them_apart(texts: list[str], shown: list[str]) -> None:
    assert with_short_keys(texts) == shown


def test_kinds() -> None:
    assert kind_of_op("product_gelu_499fa028360d") == "product_gelu"
    assert kind_of_op("MatMul") == "MatMul"


def test_nodes_are_called_by_their_kind() -> None:
    options = OptimizeOptions(level=3, verify=False, check_load=False, cpu="x86-64-v3")
    made = optimize(ir.from_onnx_text(SOURCE), options).model
    fused = {node.name: node.op_type for node in made.graph if node.domain == "ortkit.fused"}
    assert fused
    for name, op_type in fused.items():
        assert name and name.rpartition("/")[2] == kind_of_op(op_type) != op_type


def test_json_has_null_for_what_is_no_number() -> None:
    content = {"a": [1.5, math.nan], "b": {"c": (math.inf, -math.inf, "NaN")}, "d": True}
    text = json_text(content)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1.5, None], "b": {"c": [None, None, "NaN"]}, "d": True,
    }  # fmt: skip
    assert text.endswith("}\n")

"""In which float type outputs were computed, and what that allows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.graph.io.open import open_model
from ortkit.verify.compare import compare_outputs
from ortkit.verify.precision import coarser_origins
from ortkit.verify.verifier import Verifier

INSIDE = """
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
    h = Cast<to = 10>(x)
    r = Relu(h)
    y = Cast<to = 1>(r)
    z = Neg(x)
}
"""
IN_A_BRANCH = """
g (bool c, float[4] x) => (float[4] y) {
    y = If (c) <
      then_branch = t () => (float[4] a) { h = Cast<to = 10>(x)  a = Cast<to = 1>(h) },
      else_branch = e () => (float[4] b) { b = Neg(x) }
    >
}
"""
WEIGHT = """
g (float[n, 2] x) => (float[n, 2] y) <float16[2] w = {1, 2}> {
    v = Cast<to = 1>(w)
    y = Mul(x, v)
}
"""
TO_DOUBLE = (
    "g (float[4] x) => (double[4] y, double[4] z) { e = Exp(x) y = Cast<to = 11>(e) z = Neg(y) }"
)
GATHERED = """
g (int64[n] i) => (float[n] y) <float16[2] w = {1, 2}> { v = Gather(w, i)  y = Cast<to = 1>(v) }
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INSIDE, {"y": "float16"}),
        (IN_A_BRANCH, {"y": "float16"}),
        (WEIGHT, {}),
        (TO_DOUBLE, {"y": "float32", "z": "float32"}),
        (GATHERED, {"y": "float16"}),
    ],
)
def test_the_coarsest_type_on_the_way(text: str, expected: dict[str, str]) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>{text}')
    assert coarser_origins(ir.from_proto(proto)) == expected


def test_in_a_function() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>'
        "g (float[4] x) => (float[4] y) { y = local.Half(x) }"
        '<domain: "local", opset_import: ["" : 20]>'
        "Half (a) => (b) { h = Cast<to = 10>(a)  b = Cast<to = 1>(h) }"
    )
    assert coarser_origins(ir.from_proto(proto)) == {"y": "float16"}


def test_a_float16_rounding_in_a_float32_output() -> None:
    want = np.linspace(-1, 1, 16, dtype=np.float32)
    got = want + np.float32(2**-9)
    assert not compare_outputs("y", want, got).equal
    assert compare_outputs("y", want, got, computed_in="float16").equal
    assert not compare_outputs("y", want, want + np.float32(2**-4), computed_in="float16").equal


EXP = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 8] x) => (float[n, 8] y) { %s }'


def test_half_precision_inside_and_a_stated_error() -> None:
    original = open_model(onnx.parser.parse_model(EXP % "y = Exp(x)"))
    rounded = "e = Exp(x)  h = Cast<to = 10>(e)  y = Cast<to = 1>(h)"
    coarse = open_model(onnx.parser.parse_model(EXP % rounded))
    with Verifier(original, samples=2) as verifier:
        found = verifier.check(coarse, computed_in="float16")
        assert found.verdict == "yes"
        stated = verifier.check(coarse, stated=0.01)
        assert stated.verdict == "yes"
        assert verifier.check(coarse, stated=1e-6).verdict == "no"

"""The largest number of a whole tensor on CUDA: that of each row first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from region_models import scope_of

from ortkit.fusion.decompose.full_reduction import DecomposeFullReduction
from ortkit.fusion.decompose.run import decomposed
from ortkit.graph.io.text import from_text, to_text

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
#: As T5 in float16 asks whether a number is infinite.
ANY = """s = Cast <to = 1> (x)  b = IsInf (s)  i = Cast <to = 7> (b)
    m = ReduceMax <keepdims = 0> (i)  t = Cast <to = 9> (m)  y = Where (t, x, s)"""
PLAIN = "a = Abs (x)  m = ReduceMax <keepdims = 0> (a)  y = Div (a, m)"


def model_of(body: str, shape: str = "4, 64, 128") -> ir.Model:
    return from_text(f"{HEAD} g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}")


@pytest.mark.parametrize("body", [ANY, PLAIN, PLAIN.replace("Max", "Min")])
def test_rows_are_reduced_first_and_the_result_is_the_same(body: str) -> None:
    model = model_of(body)
    before = to_text(model)
    for number in (1.0, np.inf):
        x = np.random.default_rng(0).standard_normal((4, 64, 128)).astype(np.float32)
        x[3, 5, 7] = number
        want = ReferenceEvaluator(ir.to_proto(model_of(body))).run(None, {"x": x})
        with decomposed([scope_of(model)], [DecomposeFullReduction()]):
            kinds = [node.op_type for node in model.graph]
            got = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
        assert sum(kind.startswith("Reduce") for kind in kinds) == 2
        np.testing.assert_array_equal(got[0], want[0])
        # No region took a part of it.
        assert to_text(model) == before


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (PLAIN, "2, 16"),
        (PLAIN, "n, 4096"),
        (PLAIN, "1, 65536"),
        (PLAIN.replace("(a)  y", "(a, axes)  y").replace("a = ", "axes = Constant <value_ints ="
                                                         " [1]> ()  a = "), "4, 64, 128"),
        (ANY.replace("t = Cast <to = 9> (m)  y = Where (t, x, s)", "y = Mul (s, c)")
         .replace("y =", "c = Cast <to = 1> (m)  y ="), "4, 64, 128"),
    ],
    ids=["small", "a size by name", "one row", "not all axes", "a number of truths"],
)  # fmt: skip
def test_others_stay(body: str, shape: str) -> None:
    model = model_of(body.replace("<keepdims = 0> (a, axes)", "(a, axes)"), shape)
    kinds = [node.op_type for node in model.graph]
    with decomposed([scope_of(model)], [DecomposeFullReduction()]):
        assert [node.op_type for node in model.graph] == kinds

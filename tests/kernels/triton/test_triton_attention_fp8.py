"""Attention whose result is rounded to eight bits with one factor, for the product behind it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import onnx
import pytest
from interpreter import Interpreter
from onnx import helper, numpy_helper
from triton_attention import CASES, PLAIN, SIZES, WHOLE, WIDE, Case, feeds_of

from ortkit.kernels.signature import RegionSignature, body_text
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

FP8 = "float8_e4m3fn"
ROUNDED = {
    "columns of one, with a bias": CASES["columns of one, with a bias"],
    "a bias and a mask": CASES["columns of one, with a bias and a mask"],
    "wide, with a bias": Case(WIDE, batch="b", packed=True, biased=True),
    "a bias, causal": Case(replace(WIDE, causal="first"), batch="b", packed=True, biased=True),
}


def rounded(case: Case, factor: float) -> RegionSignature:
    """Return the region with its result divided by a number and rounded to eight bits."""
    plain = case.signature()
    function = plain.function()
    (last,) = function.output
    number = numpy_helper.from_array(np.array(factor, np.float32))
    nodes = [
        *function.node,
        helper.make_node("Cast", [last], ["wide"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Constant", [], ["by"], value=number),
        helper.make_node("Div", ["wide", "by"], ["ratio"]),
        helper.make_node("Cast", ["ratio"], ["narrow"], to=onnx.TensorProto.FLOAT8E4M3FN),
    ]
    made = helper.make_function(
        function.domain, function.name, function.input, ["narrow"], nodes, function.opset_import
    )
    outputs = (replace(plain.outputs[0], dtype=FP8),)
    return replace(plain, body=body_text(made), outputs=outputs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ROUNDED)
def test_it_computes_attention_in_eight_bits(name: str, interpreter: Interpreter) -> None:
    case, factor = ROUNDED[name], 2.0**-7
    signature = rounded(case, factor)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for sizes in (SIZES, WHOLE):
        feeds = feeds_of(case, sizes)
        inside = np.clip(case.expected(feeds) / factor, -448, 448).astype(np.float32)
        want = inside.astype(ml_dtypes.float8_e4m3fn)
        (got,) = interpreter.run(signature, feeds)
        wide, expected = got.astype(np.float64), want.astype(np.float64)
        assert np.abs(expected).max() > 2
        # A number next to the middle of two may fall to the other; weights are in half precision.
        bound = np.abs(expected) / 8 + 2.0**-9 + 4e-3 * np.abs(expected).max()
        assert (np.abs(wide - expected) <= bound).all()
        assert np.linalg.norm(wide - expected) <= 0.02 * np.linalg.norm(expected)


def test_other_results_in_eight_bits_are_left() -> None:
    signature = rounded(Case(replace(PLAIN, width=40, v_width=40)), 0.5)
    assert isinstance(template_for(signature), Refused)
    copied = rounded(Case(WIDE, batch="b", keys="t"), 0.5)
    found = template_for(copied)
    assert isinstance(found, Refused)
    assert "copies of boxes" in found.reason
    negated = signature.body.replace("Div", "Mul")
    assert isinstance(template_for(replace(signature, body=negated)), Refused)


@pytest.mark.parametrize("factor", [0.0, 1e-45, -1e-40, float("nan"), float("inf")])
def test_numbers_without_a_reciprocal_are_refused(factor: float) -> None:
    found = template_for(rounded(ROUNDED["wide, with a bias"], factor))
    assert isinstance(found, Refused)
    assert "reciprocal" in found.reason

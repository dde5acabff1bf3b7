"""Ops are found where a model has them written out."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit import OptimizeOptions, RecogniseOps, optimize
from ortkit.optimization.result import Optimized
from ortkit.runtime.python_ops import OPS

OPSET = '<opset_import: ["" : 20]> '
HEAD = '<ir_version: 10, opset_import: ["" : 20]> '


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def squared_relu() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.found::SquaredReLU")
    def op(x: ortkit.Float["*shape"], *, power: float = 2.0) -> ortkit.Float["*shape"]:
        return np.maximum(x, 0) ** np.asarray(power, x.dtype)

    op.body(
        OPSET + "f <power: float = 2.0> (x) => (y) { r = Relu(x) "
        "c = Constant <value_float: float = @power> () p = CastLike(c, x) y = Pow(r, p) }"
    )
    return op


def bias_norm() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.found::BiasPeak")
    def op(x: ortkit.Float["*batch n"], b: ortkit.Float["n"]) -> ortkit.Float["*batch n"]:
        t = x * b
        return t - t.max(-1, keepdims=True, initial=-np.inf)

    op.body(
        OPSET + "f (x, b) => (y) { t = Mul(x, b) axes = Constant <value = int64[1] {-1}> () "
        "m = ReduceMax(t, axes) y = Sub(t, m) }"
    )
    return op


def without() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.found::Without")
    def op(x: ortkit.Int32["*shape"], b: ortkit.Int32["*shape"]) -> ortkit.Int32["*shape"]:
        return x & ~b

    op.body(OPSET + "f (x, b) => (y) { c = BitwiseNot(b) y = BitwiseAnd(x, c) }")
    return op


def optimized(text: str, *ops: ortkit.CustomOp) -> Optimized:
    # Where x is infinite, one of the spellings is NaN.
    options = OptimizeOptions(extra_passes=(RecogniseOps(ops),), kernels="off", samples=2)
    return optimize(onnx.parser.parse_model(HEAD + text), options)


def op_types(result: Optimized) -> list[str]:
    return [f"{node.domain}::{node.op_type}".removeprefix("::") for node in result.model.graph]


@pytest.mark.parametrize(
    "body",
    [
        "r = Relu(x) y = Mul(r, r)",
        "zero = Constant <value = float {0}> () r = Max(zero, x) y = Mul(r, r)",
        "a = Abs(x) s = Add(x, a) h = Constant <value = float {0.5}> () r = Mul(s, h) "
        "y = Mul(r, r)",
        "r = Relu(x) two = Constant <value = float[1] {2}> () y = Pow(r, two)",
    ],
)
def test_an_activation_is_found_however_it_is_spelled(body: str) -> None:
    result = optimized(f"g (float[n,4] x) => (float[n,4] y) {{ {body} }}", squared_relu())
    assert op_types(result) == ["tests.found::SquaredReLU"]
    assert ("tests.found", "SquaredReLU", "") in result.model.functions
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes"


def test_what_is_found_runs_without_ortkit(tmp_path) -> None:
    import onnxruntime as ort

    text = "g (float[n,4] x) => (float[n,4] y) { t = Neg(x) r = Relu(t) y = Mul(r, r) }"
    optimized(text, squared_relu()).save(tmp_path / "m.onnx")
    x = np.float32([[1, -2, 3, -4]])
    found = ort.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, np.maximum(-x, 0) ** 2)


@pytest.mark.parametrize(
    "body",
    [
        "r = Relu(x) t = Mul(r, r) y = Mul(t, r)",
        "r = LeakyRelu <alpha = 0.01> (x) y = Mul(r, r)",
    ],
)
def test_what_is_nearly_it_is_left(body: str) -> None:
    result = optimized(f"g (float[n,4] x) => (float[n,4] y) {{ {body} }}", squared_relu())
    assert "tests.found::SquaredReLU" not in op_types(result)


def test_several_inputs_are_found_by_their_nodes() -> None:
    body = "axes = Constant <value = int64[1] {-1}> () t = Mul(b, x) m = ReduceMax(t, axes) "
    text = f"g (float[k,m,6] x, float[6] b) => (float[k,m,6] y) {{ {body} y = Sub(t, m) }}"
    result = optimized(text, bias_norm())
    assert op_types(result) == ["tests.found::BiasPeak"]
    assert [value.name for value in result.model.graph[0].inputs] == ["x", "b"]


def test_operands_of_bitwise_logic_may_change_places() -> None:
    body = "c = BitwiseNot(b) y = BitwiseAnd(c, x)"
    result = optimized(f"g (int32[n] x, int32[n] b) => (int32[n] y) {{ {body} }}", without())
    assert op_types(result) == ["tests.found::Without"]
    assert [value.name for value in result.model.graph[0].inputs] == ["x", "b"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[k,6] x, float[k,6] b) => (y) {BODY y = Sub(t, m) }", "has 2 axes"),
        ("g (float[k,6] x, float[1] b) => (y) {BODY y = Sub(t, m) }", "elsewhere"),
        (
            "g (float[k,6] x, float[6] b) => (y, z) {BODY y = Sub(t, m) z = Neg(m) }",
            "others read its inner results",
        ),
        ("g (int64[k,6] x, int64[6] b) => (y) {BODY y = Sub(t, m) }", "x is INT64"),
    ],
)
def test_what_does_not_fit_is_left_with_the_reason(text: str, reason: str) -> None:
    body = "axes = Constant <value = int64[1] {-1}> () t = Mul(x, b) m = ReduceMax(t, axes) "
    model = text.replace("BODY", f" {body}")
    dtype = "int64" if "int64[k" in text else "float"
    model = model.replace("=> (y", f"=> ({dtype}[k,6] y").replace(", z)", f", {dtype}[k,1] z)")
    result = optimized(model, bias_norm())
    assert "tests.found::BiasPeak" not in op_types(result)
    misses = [miss.reason for miss in result.report.misses if "BiasPeak" in miss.reason]
    assert any(reason in miss for miss in misses), misses


def gated() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.found::SwiGLU")
    def op(x: ortkit.Float["*shape"], g: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
        return x / (1 + np.exp(-x)) * g

    op.body(OPSET + "f (x, g) => (y) { s = Sigmoid(x) a = Mul(x, s) y = Mul(a, g) }")
    return op


GATED = (
    "g (float[n,4] x, float[n,4] g) => (float[n,4] y) {{ s = {}(x) a = Mul(s, x) y = Mul(g, a) }}"
)


def test_ops_come_before_what_their_parts_fuse_into() -> None:
    found = optimized(GATED.format("Sigmoid"), gated())
    assert op_types(found) == ["tests.found::SwiGLU"]
    # The first attempt's reason goes where a later pass makes the op's body of other nodes.
    assert [item.pass_name for item in found.report.why("SwiGLU")] == ["inline-functions"]


def test_why_says_how_near_an_op_was() -> None:
    found = optimized(GATED.format("HardSigmoid"), gated(), squared_relu())
    (near,) = found.report.why("swiglu")
    assert near.node == "Mul 'y'"
    assert near.reason == (
        "tests.found::SwiGLU: 2 of 3 nodes match, and it has HardSigmoid ('s') in the place of "
        "Sigmoid"
    )
    (far,) = found.report.why("squaredrelu")
    assert far.reason == "no function of one value has its values"
    (absent,) = optimized("g (float[n] x) => (float[n] y) { y = Neg(x) }", gated()).report.why(
        "gLU"
    )
    assert absent.reason == "no node of the model makes its result"

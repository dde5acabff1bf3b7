"""How much a model's weights are."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.analysis.weights import Weights, weights_of

MODEL = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[n] x, bool c) => (float[n] y) <float[3] w = {1, 2, 3}> {
    k = Constant <value = int64[2] {1, 2}> ()
    a = own.f (x)
    y = If (c) <then_branch = t () => (float[n] p) <float[5] v = {1, 2, 3, 4, 5}> { p = Neg (a) },
                else_branch = e () => (float[n] q) { q = Abs (a) }>
}
<domain: "own", opset_import: ["" : 17]>
f (x) => (y) { h = Constant <value = double[1] {0.5}> ()  y = Neg (x) }"""


def test_initializers_and_constants_of_all_graphs_count() -> None:
    """3 floats, 2 int64, 5 floats of a branch, a double of a function."""
    found = weights_of(ir.from_onnx_text(MODEL))
    assert found == Weights(4, 3 * 4 + 2 * 8 + 5 * 4 + 8)


def test_a_tensor_with_two_names_counts_once() -> None:
    model = ir.from_onnx_text(MODEL)
    value = model.graph.initializers["w"]
    twin = ir.Value(name="w2", const_value=value.const_value)
    model.graph.initializers["w2"] = twin
    assert weights_of(model).tensors == 4


def test_no_weights() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Neg (x) }'
    )
    assert weights_of(ir.from_onnx_text(text)) == Weights(0, 0)

"""FLOPs and bytes against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.graph.analysis.cost import OpCost, model_cost
from ortkit.graph.analysis.flops import AFFINE, NORM, SOFTMAX

HEADER = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft": 1, "own": 1]> g '

#: Five new tokens of four heads behind others; two heads of keys and values, of 8.
GROUPED = (
    "(float[2,5,32] q, float[2,5,16] k, float[2,5,16] v, float[2,2,{past},8] a,"
    " float[2,2,{past},8] b, int32[2] last, int32 total) => (float[2,5,32] y,"
    " float[2,2,{total},8] c, float[2,2,{total},8] d) {{ y, c, d = com.microsoft."
    "GroupQueryAttention<num_heads=4, kv_num_heads=2, local_window_size={window}>"
    "(q, k, v, a, b, last, total) }}"
)


def costs(text: str, **sizes: int) -> dict[str, OpCost]:
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    return {op.op: op for op in model_cost(model, sizes).ops}


@pytest.mark.parametrize(
    ("text", "op", "flops"),
    [
        ("(float[5,7] a, float[7,3] b) => (float[5,3] y) { y = MatMul(a, b) }",
         "MatMul", 2 * 5 * 7 * 3),
        ("(float[2,5,7] a, float[7] b) => (float[2,5] y) { y = MatMul(a, b) }",
         "MatMul", 2 * 2 * 5 * 7),
        ("(float[7,5] a, float[3,7] b, float[3] c) => (float[5,3] y)"
         " { y = Gemm<transA=1, transB=1>(a, b, c) }", "Gemm", 2 * 5 * 7 * 3 + 5 * 3),
        ("(float[7,5] a, float[3,7] b) => (float[5,3] y)"
         " { y = com.microsoft.FusedMatMul<transA=1, transB=1>(a, b) }",
         "com.microsoft::FusedMatMul", 2 * 5 * 7 * 3),
        ("(float[1,6,9,9] x, float[8,3,3,3] w, float[8] b) => (float[1,8,7,7] y)"
         " { y = Conv<group=2>(x, w, b) }", "Conv", 2 * 8 * 49 * 3 * 9 + 8 * 49),
        ("(float[1,6,4,4] x, float[6,8,2,2] w) => (float[1,8,8,8] y)"
         " { y = ConvTranspose<strides=[2,2]>(x, w) }", "ConvTranspose", 2 * 6 * 16 * 8 * 4),
        ("(float[3,2,5] x, float[1,16,5] w, float[1,16,4] r) => (float[3,1,2,4] y)"
         " { y = LSTM<hidden_size=4>(x, w, r) }", "LSTM", 2 * 3 * 2 * (16 * 5 + 16 * 4)),
        ("(float[2,5,7] a, float[2,3,7] b) => (float[2,5,3] y)"
         ' { y = Einsum<equation="bij,bkj->bik">(a, b) }', "Einsum", 2 * 2 * 5 * 7 * 3),
        ("(float[2,4,5,8] q, float[2,4,6,8] k, float[2,4,6,8] v) => (float[2,4,5,8] y)"
         " { y = Attention(q, k, v) }", "Attention", 2 * 4 * 5 * 6 * (2 * 16 + SOFTMAX)),
        ("(float[2,5,32] q, float[2,6,32] k, float[2,6,32] v) => (float[2,5,32] y)"
         " { y = Attention<q_num_heads=4, kv_num_heads=4>(q, k, v) }",
         "Attention", 2 * 4 * 5 * 6 * (2 * 16 + SOFTMAX)),
        ("(float[2,5,32] q, float[2,6,32] k, float[2,6,32] v) => (float[2,5,32] y)"
         " { y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v) }",
         "com.microsoft::MultiHeadAttention", 2 * 4 * 5 * 6 * (2 * 16 + SOFTMAX)),
        (GROUPED.format(past=7, total=12, window=-1), "com.microsoft::GroupQueryAttention",
         2 * 5 * 12 * (4 * 32 + 4 * SOFTMAX)),
        (GROUPED.format(past=7, total=12, window=6), "com.microsoft::GroupQueryAttention",
         2 * 5 * 6 * (4 * 32 + 4 * SOFTMAX)),
        ("(float[3,4] x, float[4] b) => (float[3,4] y) { y = Add(x, b) }", "Add", 12),
        ("(float[3,4] x) => (float[3,4] y) { y = Softmax(x) }", "Softmax", 12 * SOFTMAX),
        ("(float[3,4] x, float[4] s) => (float[3,4] y) { y = LayerNormalization(x, s) }",
         "LayerNormalization", 12 * NORM),
        ("(float[3,4] x) => (float[3,1] y) { y = ReduceMean(x) }", "ReduceMean", 12),
        ("(float[1,2,6,6] x) => (float[1,2,3,3] y)"
         " { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }", "MaxPool", 18 * 4),
        ("(uint8[3,4] x, float s) => (float[3,4] y) { y = DequantizeLinear(x, s) }",
         "DequantizeLinear", 12 * AFFINE),
        ("(float[3,4] x) => (float[4,3] y) { y = Transpose(x) }", "Transpose", 0),
    ],
)  # fmt: skip
def test_flops_of_one_operator(text: str, op: str, flops: int) -> None:
    found = costs(text)[op]
    assert (found.flops, found.uncounted, found.nodes) == (flops, 0, 1)


@pytest.mark.parametrize(
    ("text", "op", "moved"),
    [
        ("(float[3,4] x, float[4] b) => (float[3,4] y) { y = Add(x, b) }", "Add", 4 * (24 + 4)),
        ("(float16[3,4] x) => (float[3,4] y) { y = Cast<to=1>(x) }", "Cast", 12 * 6),
        ("(float[100,4] x, int64[2] i) => (float[2,4] y) { y = Gather(x, i) }",
         "Gather", 2 * 4 * 8 + 2 * 8),
        ("(float[3,4] x, int64[1] s) => (float[12] y) { y = Reshape(x, s) }", "Reshape", 0),
        # Query, keys, values, both caches, three integers, result; then the caches again.
        (GROUPED.format(past=12, total=12, window=-1), "com.microsoft::GroupQueryAttention",
         4 * (2 * 5 * (32 + 16 + 16 + 32) + 2 * 2 * 2 * 12 * 8 + 3)),
        (GROUPED.format(past=7, total=12, window=-1), "com.microsoft::GroupQueryAttention",
         4 * (2 * 5 * (32 + 16 + 16 + 32) + 2 * 2 * 2 * (7 + 12) * 8 + 3)),
    ],
)  # fmt: skip
def test_bytes_of_one_operator(text: str, op: str, moved: int) -> None:
    assert costs(text)[op].bytes == moved


def test_costs_over_named_sizes() -> None:
    text = "(float[batch,seq,8] a, float[8,5] b) => (float[batch,seq,5] y) { y = MatMul(a, b) }"
    assert costs(text)["MatMul"].flops_formula == "80*seq*batch"
    assert costs(text)["MatMul"].flops == 80
    assert costs(text, batch=2, seq=3)["MatMul"].flops == 480
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    cost = model_cost(model, {"batch": 4, "other": 5})
    assert (cost.given, cost.assumed, cost.flops) == ({"batch": 4}, {"seq": 1}, 320)


def test_what_is_not_known_is_counted_and_not_guessed() -> None:
    found = costs(
        "(float[4] x) => (float[4] y, int64[1,n] z, float[4] t)"
        " { y = own.Secret(x)  t = Tanh(x)  i = NonZero(x)  z = Neg(i) }"
    )
    assert (found["own::Secret"].uncounted, found["own::Secret"].flops) == (1, 0)
    assert found["Tanh"].uncounted == 0
    assert found["Neg"].flops_formula is None or found["Neg"].uncounted == 0


def test_weights_count_once_and_bodies_too() -> None:
    weights = ir.tensor(np.ones((4, 4), np.float32), name="w")
    model = ir.from_proto(
        onnx.parser.parse_model(
            HEADER + "(float[4,4] x, bool c) => (float[4,4] y)"
            "{ a = Add(x, w)  b = Mul(a, w)"
            "  y = If(c) <then_branch = t () => (float[4,4] p) { p = Add(b, w) },"
            "            else_branch = e () => (float[4,4] q) { q = Relu(b) }> }"
        )
    )
    value = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((4, 4)))
    value.const_value = weights
    model.graph.register_initializer(value)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for index, read in enumerate(node.inputs):
            if read is not None and read.name == "w":
                node.replace_input_with(index, value)
    found = {op.op: op for op in model_cost(model, {}).ops}
    assert (found["Add"].parameters, found["Mul"].parameters) == (16, 0)
    assert (found["Add"].nodes, found["Add"].flops, found["Relu"].flops) == (2, 32, 16)

"""Biases in float32 of quantized convolutions are compared as ONNX Runtime computes with them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from ortkit.verify.lowered.whole_biases import round_biases

BIAS = np.array([0.2499, -1.13, 3.0], np.float32)
SCALES = np.array([0.5, 0.25, 1.0], np.float32)
X_SCALE = np.float32(0.125)


def model(*, behind: tuple[str, ...]) -> ir.Model:
    """A Conv of DequantizeLinear and the operators behind it."""
    held = {
        "w": np.ones((3, 2, 1, 1), np.int8), "ws": SCALES, "wz": np.zeros(3, np.int8),
        "xs": X_SCALE, "z": np.uint8(3), "b": BIAS, "ys": np.float32(0.1),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "b"], ["v0"]),
    ]
    for number, op_type in enumerate(behind):
        more = ["ys", "z"] if op_type == "QuantizeLinear" else []
        nodes.append(helper.make_node(op_type, [f"v{number}", *more], [f"v{number + 1}"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 2, [1, 2, 4, 4])],
        [helper.make_tensor_value_info(f"v{len(behind)}", 2, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )  # fmt: skip
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def bias_of(made: ir.Model) -> np.ndarray:
    (conv,) = (node for node in made.graph if node.op_type == "Conv")
    bias = conv.inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    return bias.const_value.numpy()


@pytest.mark.parametrize("behind", [("QuantizeLinear",), ("Relu", "QuantizeLinear")])
def test_a_bias_gets_the_numbers_that_sums_have(behind: tuple[str, ...]) -> None:
    made = model(behind=behind)
    round_biases(made)
    np.testing.assert_array_equal(bias_of(made), np.array([0.25, -1.125, 3.0], np.float32))


@pytest.mark.parametrize("behind", [(), ("Relu",), ("Sigmoid", "QuantizeLinear")])
def test_where_the_result_is_not_rounded_it_stays(behind: tuple[str, ...]) -> None:
    made = model(behind=behind)
    round_biases(made)
    np.testing.assert_array_equal(bias_of(made), BIAS)

"""Biases in float32 of quantized convolutions are compared as ONNX Runtime computes with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import ortkit
from ortkit.verify.lowered.whole_biases import round_biases

BIAS = np.array([0.2499, -1.13, 3.0], np.float32)
SCALES = np.array([0.5, 0.25, 1.0], np.float32)
X_SCALE = np.float32(0.125)


#: Operators in front of the Conv -> what they have beside their input.
IN_FRONT: dict[str, dict[str, object]] = {
    "MaxPool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "Transpose": {"perm": [0, 1, 3, 2]},
    "Reshape": {}, "Slice": {}, "Sigmoid": {},
}  # fmt: skip
OPERANDS = {"Reshape": ["shape"], "Slice": ["first", "last"]}


def proto(*, behind: tuple[str, ...], in_front: tuple[str, ...] = ()) -> onnx.ModelProto:
    """A Conv of DequantizeLinear, the operators in front of it and behind it."""
    held = {
        "w": np.ones((3, 2, 1, 1), np.int8), "ws": SCALES, "wz": np.zeros(3, np.int8),
        "xs": X_SCALE, "z": np.uint8(3), "b": BIAS, "ys": np.float32(0.1),
        "shape": np.array([1, 2, 4, 4]), "first": np.zeros(4, np.int64),
        "last": np.array([1, 2, 3, 3]),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
    ]
    source = "xf"
    for number, op_type in enumerate(in_front):
        operands = [source, *OPERANDS.get(op_type, ())]
        source = f"u{number}"
        nodes.append(helper.make_node(op_type, operands, [source], **IN_FRONT[op_type]))
    nodes.append(helper.make_node("Conv", [source, "wf", "b"], ["v0"]))
    for number, op_type in enumerate(behind):
        more = ["ys", "z"] if op_type == "QuantizeLinear" else []
        nodes.append(helper.make_node(op_type, [f"v{number}", *more], [f"v{number + 1}"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 2, [1, 2, 4, 4])],
        [helper.make_tensor_value_info(f"v{len(behind)}", 2, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def model(*, behind: tuple[str, ...], in_front: tuple[str, ...] = ()) -> ir.Model:
    return ir.from_proto(proto(behind=behind, in_front=in_front))


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


def is_rounded_by_onnx_runtime(in_front: tuple[str, ...], folder: Path) -> bool:
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(folder / "o.onnx")
    settings.log_severity_level = 3
    given = proto(behind=("QuantizeLinear",), in_front=in_front).SerializeToString()
    ort.InferenceSession(given, settings, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "o.onnx").graph.node
    return "QLinearConv" in {node.op_type for node in nodes}


@pytest.mark.parametrize(
    "in_front",
    [("MaxPool",), ("Transpose",), ("Slice", "Reshape"), ("Sigmoid",), ("MaxPool", "Sigmoid")],
)
def test_operators_in_front_that_onnx_runtime_quantizes(
    in_front: tuple[str, ...], tmp_path: Path
) -> None:
    made = model(behind=("QuantizeLinear",), in_front=in_front)
    round_biases(made)
    is_rounded = not np.array_equal(bias_of(made), BIAS)
    assert is_rounded == is_rounded_by_onnx_runtime(in_front, tmp_path)
    assert is_rounded == ("Sigmoid" not in in_front)


def test_moving_a_dequantization_behind_a_pool_is_right() -> None:
    """NNCF leaves the bias in float32, and out the QuantizeLinear behind the MaxPool."""
    given = proto(behind=("Relu", "QuantizeLinear"), in_front=("MaxPool",))
    made = ortkit.optimize(given, ortkit.OptimizeOptions(kernels="off"))
    assert made.report.rolled_back == ()
    assert "sink-dequantize" in made.report.rewrites_by_pass()

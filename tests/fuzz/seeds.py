"""Small valid models of every kind that a file can hold; the fuzz damages them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.suites import stored_cases

_IR = 10
_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def seeds() -> list[onnx.ModelProto]:
    """Return the models: our own first, then those of the onnx wheel that are small."""
    stored = [
        case.model
        for kind in ("simple", "pytorch-operator", "pytorch-converted")
        for case in stored_cases(kind)
    ]
    small = [model for model in stored if model.ByteSize() < 20_000]
    return [*own_seeds(), *small[::3]]


def own_seeds() -> Iterator[onnx.ModelProto]:
    """Yield models with functions, branches, loops, sequences, optionals, sparse tensors, text."""
    yield _model(
        [
            helper.make_node("Twice", ["x"], ["u"], "call", domain="mine"),
            helper.make_node("If", ["c"], ["t"], then_branch=_branch(0), else_branch=_branch(1)),
            helper.make_node("Softmax", ["t"], ["s"], axis=-1),
            helper.make_node("Reshape", ["s", "shape"], ["r"]),
            helper.make_node("MatMul", ["r", "w"], ["y"], "last"),
        ],
        [_info("x", _FLOAT, ["n", 2]), _info("c", _BOOL, [])],
        [_info("y", _FLOAT, ["n", 3])],
        {"w": np.ones((2, 3), np.float32), "shape": np.array([-1, 2])},
        functions=[_twice()],
    )
    yield _model(
        [
            helper.make_node("Loop", ["trips", "", "x"], ["z", "all"], body=_loop_body()),
            helper.make_node("ReduceSum", ["all"], ["sum"], keepdims=0),
            helper.make_node("Add", ["z", "sum"], ["y"]),
        ],
        [_info("x", _FLOAT, ["n"])],
        [_info("y", _FLOAT, ["n"])],
        {"trips": np.array(3)},
    )
    yield _model(
        [
            helper.make_node("SplitToSequence", ["x", "one"], ["q"], axis=0),
            helper.make_node("SequenceAt", ["q", "one"], ["a"]),
            helper.make_node("SequenceInsert", ["q", "a"], ["q2"]),
            helper.make_node("ConcatFromSequence", ["q2"], ["y"], axis=0),
            helper.make_node("SequenceLength", ["q2"], ["length"]),
        ],
        [_info("x", _FLOAT, [3, 2])],
        [_info("y", _FLOAT, None), _info("length", _INT64, [])],
        {"one": np.array(1)},
    )
    yield _model(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"]),
            helper.make_node("LayerNormalization", ["e", "scale"], ["n"], axis=-1),
            helper.make_node("Transpose", ["n"], ["k"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["n", "k"], ["scores"]),
            helper.make_node("Where", ["mask", "scores", "low"], ["m"]),
            helper.make_node("Softmax", ["m"], ["p"]),
            helper.make_node("MatMul", ["p", "n"], ["y"]),
        ],
        [_info("ids", _INT64, ["batch", "seq"]), _info("mask", _BOOL, ["batch", "seq", "seq"])],
        [_info("y", _FLOAT, ["batch", "seq", 4])],
        {
            "table": np.ones((11, 4), np.float32),
            "scale": np.ones(4, np.float32),
            "low": np.array(-1e9, np.float32),
        },
    )
    yield _model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "g", "b", "mean", "var"], ["n"]),
            helper.make_node("Relu", ["n"], ["r"]),
            helper.make_node("Pad", ["r", "pads"], ["p"]),
            helper.make_node("Resize", ["p", "", "scales"], ["s"], mode="nearest"),
            helper.make_node("GlobalAveragePool", ["s"], ["y"]),
        ],
        [_info("x", _FLOAT, ["n", 2, 8, 8])],
        [_info("y", _FLOAT, ["n", 3, 1, 1])],
        {
            "w": np.ones((3, 2, 3, 3), np.float32),
            **{name: np.ones(3, np.float32) for name in ("g", "b", "mean", "var")},
            "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
            "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )
    yield _model(
        [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
        ],
        [_info("x", TensorProto.UINT8, ["n", 4])],
        [_info("y", TensorProto.UINT8, ["n", 4])],
        {
            "w": np.ones((4, 4), np.float32),
            "s": np.array(0.1, np.float32),
            "z": np.array(3, np.uint8),
        },
    )
    yield _model(
        [
            helper.make_node("StringNormalizer", ["x"], ["t"], case_change_action="LOWER"),
            helper.make_node("Identity", ["t"], ["y"]),
        ],
        [_info("x", TensorProto.STRING, ["n"])],
        [_info("y", TensorProto.STRING, None)],
        {},
    )
    yield _model(
        [
            helper.make_node("Range", ["zero", "limit", "step"], ["r"]),
            helper.make_node("Expand", ["r", "shape"], ["e"]),
            helper.make_node("Tile", ["e", "repeats"], ["t"]),
            helper.make_node("OneHot", ["r", "limit", "values"], ["o"]),
            helper.make_node("ReduceSum", ["t"], ["s"], keepdims=0),
            helper.make_node("ReduceSum", ["o"], ["u"], keepdims=0),
            helper.make_node("ConstantOfShape", ["shape"], ["c"]),
            helper.make_node("ReduceSum", ["c"], ["v"], keepdims=0),
            helper.make_node("Cast", ["s"], ["f"], to=_FLOAT),
            helper.make_node("Sum", ["x", "f", "u", "v"], ["y"]),
        ],
        [_info("x", _FLOAT, ["n"])],
        [_info("y", _FLOAT, ["n"])],
        {
            "zero": np.array(0), "limit": np.array(5), "step": np.array(1),
            "shape": np.array([2, 5]), "repeats": np.array([1, 2]),
            "values": np.array([0, 1], np.float32),
        },
    )  # fmt: skip
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(_FLOAT, ["n"]))
    yield _model(
        [
            helper.make_node("OptionalHasElement", ["x"], ["has"]),
            helper.make_node("Not", ["has"], ["y"]),
        ],
        [helper.make_value_info("x", optional)],
        [_info("y", _BOOL, [])],
        {},
    )
    yield _sparse()


def _sparse() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 5]), "w_indices")
    model = _model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [_info("x", _FLOAT, ["n", 2])],
        [_info("y", _FLOAT, ["n", 3])],
        {},
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return model


def _twice() -> onnx.FunctionProto:
    nodes = [
        helper.make_node("Add", ["a", "a"], ["t"]),
        helper.make_node("LeakyRelu", ["t"], ["b"]),
    ]
    nodes[1].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    return helper.make_function(
        "mine", "Twice", ["a"], ["b"], nodes, [helper.make_opsetid("", 21)], ["slope"]
    )


def _branch(index: int) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Mul", ["u", f"k{index}"], [f"b{index}"])],
        f"branch{index}",
        [],
        [_info(f"b{index}", _FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.full(2, index, np.float32), f"k{index}")],
    )


def _loop_body() -> onnx.GraphProto:
    return helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Mul", ["s", "s"], ["s_out"]),
            helper.make_node("ReduceMax", ["s_out"], ["each"], keepdims=0),
        ],
        "body",
        [_info("i", _INT64, []), _info("c", _BOOL, []), _info("s", _FLOAT, ["n"])],
        [_info("c_out", _BOOL, []), _info("s_out", _FLOAT, ["n"]), _info("each", _FLOAT, [])],
    )


def _info(name: str, kind: int, shape: list[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    return helper.make_model(
        graph, opset_imports=imports, functions=functions or [], ir_version=_IR
    )

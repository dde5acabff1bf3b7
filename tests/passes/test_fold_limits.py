"""Constants that would be large are not computed to find that out."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit import OptimizeOptions, optimize

_FAR = 2**33
#: A node, and its constant inputs: by its result it is far larger than by what it is made from.
GROWS: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "Range": (
        helper.make_node("Range", ["a", "b", "c"], ["r"]),
        {"a": np.array(0), "b": np.array(2**40), "c": np.array(1)},
    ),
    "ConstantOfShape": (
        helper.make_node("ConstantOfShape", ["a"], ["r"]),
        {"a": np.array([2**20, 2**20])},
    ),
    "sizes that overflow": (
        helper.make_node("ConstantOfShape", ["a"], ["r"]),
        {"a": np.array([2**32, 2**32])},
    ),
    "Expand": (
        helper.make_node("Expand", ["a", "b"], ["r"]),
        {"a": np.ones(1, np.float32), "b": np.array([_FAR, 2])},
    ),
    "Tile": (
        helper.make_node("Tile", ["a", "b"], ["r"]),
        {"a": np.ones(1, np.float32), "b": np.array([_FAR])},
    ),
    "OneHot": (
        helper.make_node("OneHot", ["a", "b", "c"], ["r"]),
        {"a": np.zeros(1, np.int64), "b": np.array(_FAR), "c": np.ones(2, np.float32)},
    ),
    "Pad": (
        helper.make_node("Pad", ["a", "b"], ["r"]),
        {"a": np.ones(1, np.float32), "b": np.array([_FAR, 0])},
    ),
    "Resize": (
        helper.make_node("Resize", ["a", "", "", "b"], ["r"]),
        {"a": np.ones((1, 1, 2, 2), np.float32), "b": np.array([1, 1, 2**17, 2**17])},
    ),
    "MatMul": (
        helper.make_node("MatMul", ["a", "b"], ["r"]),
        {"a": np.ones((2**15, 1), np.float32), "b": np.ones((1, 2**15), np.float32)},
    ),
    "Upsample": (
        helper.make_node("Upsample", ["a", "b"], ["r"]),
        {"a": np.ones((1, 1, 1, 1), np.float32), "b": np.array([1, 1, 2**16, 2**16], np.float32)},
    ),
}


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Let an attempt to make gigabytes be an error and not the end of the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("name", GROWS)
def test_what_would_be_large_is_refused_by_its_size(name: str) -> None:
    node, constants = GROWS[name]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x", "y")]
    nodes = [
        node,
        helper.make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    opset = 9 if node.op_type == "Upsample" else 17
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    options = OptimizeOptions(level=2, kernels="off", verify=False)
    report = optimize(model, options).report
    missed = [miss.reason for miss in report.misses if miss.pass_name == "fold-constants"]
    assert any("its result would add" in reason for reason in missed), missed

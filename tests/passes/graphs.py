"""Small models for tests of single passes, and the comparison of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.graph.check.model import check_model
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import Pass
from ortkit.rewrite.pipeline import Pipeline, PipelineResult


class Graph:
    """A model written as a list of calls; constants are seeded and positive."""

    def __init__(self, dtype: type = np.float32, opset: int = 17) -> None:
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(len("folds"))

    def input(self, *shape: int | str, name: str = "x") -> str:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, *shape: int) -> str:
        return self.data(self.random.uniform(0.5, 1.5, shape))

    def data(self, array: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, self.dtype), name))
        return name

    def ints(self, *numbers: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def batch_norm(self, x: str, channels: int, **attributes: object) -> str:
        constants = [self.constant(channels) for _ in range(4)]
        return self.op("BatchNormalization", x, *constants, **attributes)

    def kernel(self, kind: str, inputs: int, outputs: int, groups: int, *size: int) -> str:
        if kind == "ConvTranspose":
            return self.constant(inputs, outputs // groups, *size)
        return self.constant(outputs, inputs // groups, *size)

    def model(self, *outputs: str) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        graph = helper.make_graph(
            self.nodes,
            "g",
            self.inputs,
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, feeds))


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or 2 for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = random.standard_normal(shape).astype(dtype)
    return feeds


def rewritten(
    model: onnx.ModelProto, passes: Sequence[Pass], level: int = 2
) -> tuple[onnx.ModelProto, PipelineResult]:
    """Run `passes` to their fixed point; the result must be valid."""
    result = Pipeline(tuple(passes)).run(ir.from_proto(model), RewriteOptions(level=level))
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_rewritten(
    model: onnx.ModelProto,
    passes: Sequence[Pass],
    expected: Sequence[str],
    *,
    epsilons: float = 64,
    level: int = 2,
) -> onnx.ModelProto:
    """Compare the op types, and the numbers with the original's in epsilons of the largest."""
    made, result = rewritten(model, passes, level)
    assert kinds(made) == list(expected), [miss.reason for miss in result.log.misses]
    assert result.modified
    feeds = feeds_of(model)
    for got, want in zip(run(made, feeds), run(model, feeds), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        bound = epsilons * np.finfo(want.dtype).eps * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    return made


def assert_refused(
    model: onnx.ModelProto, passes: Sequence[Pass], reason: str = "", *, level: int = 2
) -> None:
    """Nothing may change, and the reason must be on record where one is promised."""
    made, result = rewritten(model, passes, level)
    assert kinds(made) == kinds(model)
    assert not result.modified
    if reason:
        assert any(reason in miss.reason for miss in result.log.misses), result.log.misses

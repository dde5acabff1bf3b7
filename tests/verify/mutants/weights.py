"""Weights as training leaves them, and models in other element types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mutants.draft import Rng

#: Operators of which only the first input is a float that is computed with.
_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
#: Share of channels that are larger than the others, and by how much.
_OUTLIERS, _FACTOR = 0.05, 6.0


def trained_like(model: onnx.ModelProto, rng: Rng) -> onnx.ModelProto:
    """Return a model with heavy-tailed rows, outlier channels, biases, and norms of their own."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    roles = {
        name: (node.op_type, place)
        for node in result.graph.node
        for place, name in enumerate(node.input)
    }
    for tensor in result.graph.initializer:
        array = numpy_helper.to_array(tensor)
        op, place = roles.get(tensor.name, ("", 0))
        if array.dtype != np.float32 or array.size < 8:
            continue
        if op == "BatchNormalization":
            array = _statistics(array, place, rng)
        elif array.ndim == 1:
            scale = 0.3 if abs(array.mean()) < 0.5 else 0.0
            array = array + rng.standard_normal(array.shape) * scale
            array = array if scale else array * rng.lognormal(0, 0.4, array.shape)
        elif op != "Constant":
            array = _heavy_tailed(array, rng)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    return result


def _statistics(array: np.ndarray, place: int, rng: Rng) -> np.ndarray:
    """Return what a BatchNormalization reads: scale, offset, mean or variance."""
    if place in (1, 4):
        return rng.lognormal(0, 0.6, array.shape) * (0.2 if place == 4 else 1.0)
    return rng.standard_normal(array.shape) * 0.5


def _heavy_tailed(array: np.ndarray, rng: Rng) -> np.ndarray:
    """Scale rows and columns differently, and keep the size of the whole."""
    before = np.sqrt(np.square(array).mean())
    rows = rng.lognormal(0, 0.5, (*array.shape[:1], *[1] * (array.ndim - 1)))
    columns = np.where(rng.random(array.shape[1]) < _OUTLIERS, _FACTOR, 1.0)
    array = array * rows * columns.reshape(1, -1, *[1] * (array.ndim - 2))
    return array * before / np.sqrt(np.square(array).mean())


def in_type(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """Return a model whose float tensors of one width have another, functions' included.

    Args:
        model: Of float32 for a narrow `kind`, of float16 or bfloat16 for float32.
        kind: The element type, of `onnx.TensorProto`.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    old = halves if kind == TensorProto.FLOAT else (TensorProto.FLOAT,)
    for graph in _graphs(result.graph):
        for tensor in graph.initializer:
            _retype(tensor, old, kind)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in old:
                value.type.tensor_type.elem_type = kind
    for function in result.functions:
        del function.value_info[:]
    for node in _nodes(result):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in old:
                attribute.i = kind
            elif attribute.name in ("value_float", "value_floats") and node.op_type == "Constant":
                value = np.asarray(helper.get_attribute_value(attribute), np.float32)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
            if attribute.HasField("t"):
                _retype(attribute.t, old, kind)
    return result


def rounding(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """Return a float32 model whose weights and every value are rounded to a narrower type.

    ONNX Runtime runs few operators in bfloat16 on CPUs, and those in float32.
    """
    result = in_type(in_type(model, kind), TensorProto.FLOAT)
    graph = result.graph
    inferred = onnx.shape_inference.infer_shapes(result).graph.value_info
    floats = {v.name for v in (*inferred, *graph.output)
              if v.type.tensor_type.elem_type == TensorProto.FLOAT}  # fmt: skip
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for at, name in enumerate(node.output):
            if name in floats and node.op_type not in ("Constant", "Reshape", "Transpose"):
                node.output[at] = f"{name}/whole"
                nodes.append(helper.make_node("Cast", [f"{name}/whole"], [f"{name}/low"], to=kind))
                nodes.append(helper.make_node("Cast", [f"{name}/low"], [name], to=1))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return result


def _retype(tensor: onnx.TensorProto, old: tuple[int, ...], kind: int) -> None:
    if tensor.data_type in old:
        wanted = helper.tensor_dtype_to_np_dtype(kind)
        most = 65504.0 if kind == TensorProto.FLOAT16 else float(np.finfo(np.float32).max)
        array = numpy_helper.to_array(tensor).astype(np.float32)
        held = np.where(np.isfinite(array), np.clip(array, -most, most), array)
        tensor.CopyFrom(numpy_helper.from_array(held.astype(wanted), tensor.name))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node

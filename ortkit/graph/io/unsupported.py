"""What ONNX has and onnx-ir 1.1 cannot hold: made into something it can, or carried past it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, numpy_helper

from ortkit.errors import ModelError

_TYPE_KEY = "ortkit.type_proto"
_SPARSE_KINDS = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)
_TYPE_KINDS = (AttributeProto.TYPE_PROTO, AttributeProto.TYPE_PROTOS)
_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
# A few bytes of a sparse tensor can declare a dense one of any size.
_MOST_DENSE_BYTES = 256 << 20


@dataclass(frozen=True)
class Carried:
    """Types of the main graph's inputs and outputs that onnx-ir has no class for, by position."""

    inputs: dict[int, bytes]
    outputs: dict[int, bytes]
    dropped: tuple[str, ...]

    def attach(self, graph: ir.Graph) -> None:
        """Keep the types with the values, for `restore_types`."""
        for values, types in ((graph.inputs, self.inputs), (graph.outputs, self.outputs)):
            for index, data in types.items():
                values[index].meta[_TYPE_KEY] = data


def needs_carrying(model: ModelProto) -> bool:
    """Say whether `carry` would change `model`."""
    return (
        bool(model.training_info)
        or any(
            graph.sparse_initializer
            or any(not _is_supported(info.type) for info in _infos(graph))
            or any(_is_odd(attribute) for node in graph.node for attribute in node.attribute)
            for graph in _all_graphs(model)
        )
        or any(
            _is_odd(attribute)
            for function in model.functions
            for node in function.node
            for attribute in node.attribute
        )
    )


def carry(model: ModelProto, where: str) -> Carried:
    """Change `model` so that onnx-ir can hold it, and return what to put back when saving.

    Sparse constants become dense (ONNX Runtime does the same when it loads them). Map and opaque
    types of inputs and outputs are carried; elsewhere they are left for inference.

    Raises:
        ModelError: A sparse tensor is malformed or too large to be dense, or a node has a sparse
            or type attribute that cannot be held.
    """
    inputs, outputs = _unheld(model.graph.input), _unheld(model.graph.output)
    for graph in list(_all_graphs(model)):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, where))
        graph.ClearField("sparse_initializer")
        for info in _infos(graph):
            if not _is_supported(info.type):
                info.ClearField("type")
        _change_nodes(graph.node, where)
    for function in model.functions:
        _change_nodes(function.node, where)
    dropped = ("training_info",) if model.training_info else ()
    model.ClearField("training_info")
    return Carried(inputs, outputs, dropped)


def restore_types(graph: ir.Graph, proto: GraphProto) -> None:
    """Put carried types back into a serialized graph."""
    for values, infos in ((graph.inputs, proto.input), (graph.outputs, proto.output)):
        for value, info in zip(values, infos, strict=True):
            data = value.meta.get(_TYPE_KEY)
            if isinstance(data, bytes) and value.type is None:
                info.type.ParseFromString(data)


def _unheld(infos: Iterable[onnx.ValueInfoProto]) -> dict[int, bytes]:
    return {
        index: info.type.SerializeToString()
        for index, info in enumerate(infos)
        if not _is_supported(info.type)
    }


def _infos(graph: GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def _all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    yield from _with_nested(model.graph)
    for function in model.functions:
        yield from _nested(function.node)


def _with_nested(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    yield from _nested(graph.node)


def _nested(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type in _GRAPH_KINDS:
                yield from _with_nested(attribute.g)
                for graph in attribute.graphs:
                    yield from _with_nested(graph)


def _is_supported(type_: TypeProto) -> bool:
    """Say whether onnx-ir has a class for the type."""
    kind = type_.WhichOneof("value")
    if kind is None:
        return True
    while kind in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
        kind = type_.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return False
    return bool(getattr(type_, kind).elem_type)


def _is_odd(attribute: AttributeProto) -> bool:
    return attribute.type in _SPARSE_KINDS or (
        attribute.type in _TYPE_KINDS
        and not all(map(_is_supported, [attribute.tp, *attribute.type_protos]))
    )


def _change_nodes(nodes: Iterable[NodeProto], where: str) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if not _is_odd(attribute):
                continue
            location = f"{where}: node {node.name!r} ({node.op_type})"
            if node.op_type != "Constant" or attribute.type != AttributeProto.SPARSE_TENSOR:
                raise ModelError(
                    f"attribute {attribute.name!r} is a sparse tensor or an unusual type,"
                    " which is not supported",
                    where=location,
                    fix="replace the node by one with dense values",
                )
            tensor = _dense(attribute.sparse_tensor, location)
            attribute.Clear()
            attribute.name, attribute.type = "value", AttributeProto.TENSOR
            attribute.t.CopyFrom(tensor)


def _dense(sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
    """Return a sparse tensor as a dense one with the same name."""
    dims = tuple(sparse.dims)
    fault = _sparse_fault(sparse, dims)
    if fault:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r} {fault}",
            where=where,
            fix="replace it by a dense one, or export the model again",
        )
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), dims)
    dense = np.zeros(prod(dims), values.dtype)
    dense[indices] = values
    return numpy_helper.from_array(dense.reshape(dims), sparse.values.name)


def _sparse_fault(sparse: onnx.SparseTensorProto, dims: tuple[int, ...]) -> str:
    external = onnx.TensorProto.EXTERNAL
    if external in (sparse.values.data_location, sparse.indices.data_location):
        return "has external data, which is not supported"
    if any(dim <= 0 for dim in dims) or not dims:
        return f"has shape {list(dims)}"
    if prod(dims) * 16 > _MOST_DENSE_BYTES:
        return f"of shape {list(dims)} is too large to be made dense"
    if len(sparse.values.dims) != 1 or sparse.indices.data_type != onnx.TensorProto.INT64:
        return "has values or indices of a wrong type or shape"
    count = sparse.values.dims[0]
    if list(sparse.indices.dims) not in ([count], [count, len(dims)]):
        return "has another number of indices than of values"
    indices = numpy_helper.to_array(sparse.indices)
    limit = np.array(dims if indices.ndim == 2 else prod(dims))
    if ((indices < 0) | (indices >= limit)).any():
        return "has an index outside of its shape"
    return ""

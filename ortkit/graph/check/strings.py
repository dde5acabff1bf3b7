"""Strings of a protobuf: are they text?

Protobuf gives bytes where a string is not UTF-8, and onnx-ir passes them on; they would surface
as a TypeError anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ortkit.errors import ModelError


def check_strings(model: ModelProto, where: str) -> None:
    """Check that names, descriptions and metadata are UTF-8; dimension names are onnx-ir's part.

    Raises:
        ModelError: One is not.
    """
    for strings in _of_model(model):
        try:
            "".join(strings)  # the fastest way to see whether one is bytes
        except TypeError:
            bad = next(entry for entry in strings if not isinstance(entry, str))
            raise ModelError(
                f"{bad!r} is not UTF-8 text",
                where=where,
                fix="copy the file again; it is damaged",
            ) from None


def _of_model(model: ModelProto) -> Iterator[list[str]]:
    yield [model.producer_name, model.producer_version, model.domain, model.doc_string]
    yield [entry.domain for entry in model.opset_import]
    yield from _entries(model.metadata_props)
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield [function.name, function.domain, function.overload, function.doc_string]
        yield [*function.input, *function.output, *function.attribute]
        yield [entry.domain for entry in function.opset_import]
        yield from _entries(function.metadata_props)
        yield from _of_infos(function.value_info)
        yield from _of_nodes(function.node)
        for attribute in function.attribute_proto:
            yield from _of_attribute(attribute)


def _of_graph(graph: GraphProto) -> Iterator[list[str]]:
    yield [graph.name, graph.doc_string]
    yield from _entries(graph.metadata_props)
    for infos in (graph.input, graph.output, graph.value_info):
        yield from _of_infos(infos)
    for tensor in graph.initializer:
        yield from _of_tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _of_tensor(sparse.values)
        yield from _of_tensor(sparse.indices)
    for annotation in graph.quantization_annotation:
        yield [annotation.tensor_name]
        yield from _entries(annotation.quant_parameter_tensor_names)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Sequence[NodeProto]) -> Iterator[list[str]]:
    # One long list a field: a list a node takes twice the time.
    yield [node.name for node in nodes]
    yield [node.op_type for node in nodes]
    yield [node.domain for node in nodes]
    yield [node.overload for node in nodes]
    yield [node.doc_string for node in nodes]
    yield [name for node in nodes for name in node.input]
    yield [name for node in nodes for name in node.output]
    for node in nodes:
        if node.metadata_props:
            yield from _entries(node.metadata_props)
        for attribute in node.attribute:
            yield from _of_attribute(attribute)


def _of_attribute(attribute: AttributeProto) -> Iterator[list[str]]:
    yield [attribute.name, attribute.doc_string, attribute.ref_attr_name]
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        for graph in (attribute.g, *attribute.graphs):
            yield from _of_graph(graph)
    elif attribute.type in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        for tensor in (attribute.t, *attribute.tensors):
            yield from _of_tensor(tensor)


def _of_tensor(tensor: TensorProto) -> Iterator[list[str]]:
    yield [tensor.name, tensor.doc_string]
    if tensor.external_data:
        yield from _entries(tensor.external_data)
    if tensor.metadata_props:
        yield from _entries(tensor.metadata_props)


def _of_infos(infos: Sequence[ValueInfoProto]) -> Iterator[list[str]]:
    yield [info.name for info in infos]
    yield [info.doc_string for info in infos]
    yield [info.type.denotation for info in infos]
    for info in infos:
        if info.metadata_props:
            yield from _entries(info.metadata_props)


def _entries(entries: Sequence[onnx.StringStringEntryProto]) -> Iterator[list[str]]:
    yield [entry.key for entry in entries]
    yield [entry.value for entry in entries]

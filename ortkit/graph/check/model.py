"""Is this a valid model? Asked of files before anything relies on them, and after passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from ortkit.errors import ModelError
from ortkit.graph.check.calls import check_calls
from ortkit.graph.check.graph_facts import (
    FunctionFacts,
    FunctionId,
    GraphFacts,
    ModelFacts,
    facts_of_ir,
    facts_of_proto,
)
from ortkit.graph.check.names import check_scopes
from ortkit.graph.check.ranks import check_ranks
from ortkit.graph.check.schemas import NodeRules, check_opsets
from ortkit.graph.check.strings import check_strings
from ortkit.graph.check.tensors import check_elem_type, check_tensor, tensors_of
from ortkit.graph.walk import all_graphs

_FIELD_OF: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}


def check_model(model: ir.Model) -> None:
    """Check names, order, operators and constants of a model and everything inside it.

    Linear in the size of the model. Shapes are not inferred, and nodes of domains that ONNX does
    not define pass.

    Raises:
        ModelError: The model is not valid; the message names the node or value.
    """
    _check_facts(facts_of_ir(model), "")
    for graph in all_graphs(model):
        _check_links(graph)


def check_proto(model: ModelProto, raw_bytes: Mapping[int, int], where: str) -> bool:
    """Check a protobuf as `check_model` does, before onnx-ir sees it, and its tensors too.

    Args:
        model: The model; nothing in it is trusted.
        raw_bytes: Length of the raw_data of initializers that were left out, by index.
        where: Where the model came from, for messages; may be empty.

    Returns:
        Whether all nodes are listed in an order in which they can run.

    Raises:
        ModelError: The model is not valid; the message names the node or value.
    """
    prefix = f"{where}: " if where else ""
    check_strings(model, where or "model")
    for index, tensor in enumerate(model.graph.initializer):
        check_tensor(tensor, f"{prefix}graph {model.graph.name!r}", raw_bytes.get(index))
    _check_graph_data(model.graph, prefix, is_main=True)
    for function in model.functions:
        _check_nodes_data(function.node, prefix)
        for info in function.value_info:
            _check_type(info, prefix)
    check_ranks(model, where or "model")
    return _check_facts(facts_of_proto(model), prefix)


def _check_facts(model: ModelFacts, prefix: str) -> bool:
    where = prefix.removesuffix(": ") or "model"
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"IR version {model.ir_version} is not supported"
            f" (onnx {onnx.__version__} knows 1 to {onnx.IR_VERSION})",
            where=where,
            fix="install a newer onnx, or export for an older one",
        )
    check_opsets(model.opsets, where)
    functions: dict[FunctionId, FunctionFacts] = {}
    for function in model.functions:
        if function.id in functions:
            raise ModelError(
                f"function {function.name!r} of domain {function.domain!r} is defined twice",
                where=where,
                fix="export the model again",
            )
        functions[function.id] = function
    # Nodes first: an operator that does not exist explains an input that does not.
    _check_nodes(model.graph, NodeRules(model.opsets, functions), prefix)
    is_sorted = check_scopes(model.graph, prefix)
    for function in model.functions:
        inside = f"{prefix}function {function.name!r}: "
        check_opsets(function.opsets, inside.removesuffix(": "))
        _check_nodes(function.body, NodeRules(function.opsets, functions), inside)
        _check_references(function.body, function, inside)
        is_sorted = check_scopes(function.body, inside) and is_sorted
    check_calls(model, where)
    return is_sorted


def _check_nodes(graph: GraphFacts, rules: NodeRules, prefix: str) -> None:
    for index, node in enumerate(graph.nodes):
        rules.check(node, f"{prefix}{node.label(index)}")
        for inner in node.graphs:
            _check_nodes(inner, rules, f"{prefix}{node.label(index)}: ")


def _check_references(graph: GraphFacts, function: FunctionFacts, prefix: str) -> None:
    """Check that attributes refer to attributes that the function has."""
    for index, node in enumerate(graph.nodes):
        for attribute in node.attributes:
            if attribute.refers_to and attribute.refers_to not in function.attributes:
                raise ModelError(
                    f"attribute {attribute.name!r} refers to {attribute.refers_to!r},"
                    " which the function does not have",
                    where=f"{prefix}{node.label(index)}",
                    fix="export the model again",
                )
        for inner in node.graphs:
            _check_references(inner, function, prefix)


def _check_graph_data(graph: GraphProto, prefix: str, *, is_main: bool) -> None:
    where = f"{prefix}graph {graph.name!r}"
    if not is_main:  # the main graph's initializers may be elsewhere; see check_proto
        for tensor in graph.initializer:
            check_tensor(tensor, where)
    for sparse in graph.sparse_initializer:
        check_tensor(sparse.values, where)
        check_tensor(sparse.indices, where)
    for infos in (graph.input, graph.output, graph.value_info):
        for info in infos:
            _check_type(info, where)
    for index, info in enumerate((*graph.input, *graph.output)):
        # Outputs, and inputs of inner graphs, may have no type or an empty one: runtimes infer it.
        is_given = info.type.WhichOneof("value") is not None
        is_needed = is_given or (is_main and index < len(graph.input))
        if is_needed and not _is_complete(info.type):
            raise ModelError(
                f"value {info.name!r} has no data type", where=where, fix="export the model again"
            )
    _check_nodes_data(graph.node, prefix)


def _check_nodes_data(nodes: Iterator[NodeProto], prefix: str) -> None:
    for index, node in enumerate(nodes):
        if not node.attribute:
            continue
        where = f"{prefix}node {node.name or index!r} ({node.op_type})"
        for attribute in node.attribute:
            if attribute.type == AttributeProto.UNDEFINED:
                raise ModelError(
                    f"attribute {attribute.name!r} has no type",
                    where=where,
                    fix="export the model again",
                )
            field = _FIELD_OF.get(attribute.type)
            if field and not attribute.HasField(field) and not attribute.ref_attr_name:
                raise ModelError(
                    f"attribute {attribute.name!r} has no value",
                    where=where,
                    fix="check that the file is complete, or export the model again",
                )
            if attribute.type == AttributeProto.GRAPH:
                _check_graph_data(attribute.g, f"{where}: ", is_main=False)
            elif attribute.type == AttributeProto.GRAPHS:
                for graph in attribute.graphs:
                    _check_graph_data(graph, f"{where}: ", is_main=False)
        for tensor in tensors_of(node):
            check_tensor(tensor, where)


def _check_type(info: onnx.ValueInfoProto, where: str) -> None:
    leaf = _leaf(info.type)
    kind = leaf.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        check_elem_type(getattr(leaf, kind).elem_type, f"{where}: value {info.name!r}")


def _is_complete(type_: onnx.TypeProto) -> bool:
    leaf = _leaf(type_)
    kind = leaf.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return bool(getattr(leaf, kind).elem_type)
    return kind is not None


def _leaf(type_: onnx.TypeProto) -> onnx.TypeProto:
    """Return what a sequence or optional holds, or the type itself."""
    kind = type_.WhichOneof("value")
    while kind in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
        kind = type_.WhichOneof("value")
    return type_


def _check_links(graph: ir.Graph) -> None:
    """Check what names cannot show: stale values, and constants that are not what they say."""
    where = f"graph {graph.name!r}"
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            raise ModelError(
                f"initializer {value.name!r} has no data", where=where, fix="export again"
            )
        if value.dtype is not None and value.dtype != tensor.dtype:
            raise ModelError(
                f"initializer {value.name!r} is {value.dtype.name}"
                f" and its data {tensor.dtype.name}",
                where=where,
                fix="give the value the type of its data",
            )
    for index, node in enumerate(graph):
        for read in node.inputs:
            producer = None if read is None else read.producer()
            if read is None or producer is None or producer.graph is not None:
                continue
            raise ModelError(
                f"input {read.name!r} comes from a node that is in no graph",
                where=f"node {node.name or index!r} ({node.op_type})",
                fix="replace the value before removing its node",
            )

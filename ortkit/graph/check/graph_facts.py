"""What a check needs to know of a graph, by name, from a protobuf or from onnx-ir objects.

One set of checks then serves both: files before onnx-ir sees them, and models after a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import onnx
import onnx_ir as ir

_GRAPH_KINDS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
FunctionId = tuple[str, str, str]
"""Domain, name and overload."""


class AttributeFacts(NamedTuple):
    """One attribute: name, type as onnx.AttributeProto numbers it, and what it refers to."""

    name: str
    kind: int
    refers_to: str
    number: int
    """Value of the attribute if it is one integer, else 0."""


class NodeFacts(NamedTuple):
    """One node; an absent input or output is an empty name."""

    name: str
    domain: str
    op_type: str
    overload: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Sequence[AttributeFacts]
    graphs: Sequence[GraphFacts]

    def label(self, index: int) -> str:
        """Name the node as a user would find it."""
        op_type = self.op_type if self.op_type.isprintable() else repr(self.op_type)
        return f"node {self.name or index!r} ({op_type})"


@dataclass(frozen=True)
class GraphFacts:
    """One graph, or the body of a function."""

    name: str
    inputs: Sequence[str]
    initializers: Sequence[str]
    nodes: Sequence[NodeFacts]
    outputs: Sequence[str]


@dataclass(frozen=True)
class FunctionFacts:
    """One model-local function."""

    domain: str
    name: str
    overload: str
    opsets: dict[str, int]
    attributes: frozenset[str]
    body: GraphFacts

    @property
    def id(self) -> FunctionId:
        return self.domain, self.name, self.overload


@dataclass(frozen=True)
class ModelFacts:
    """One model."""

    ir_version: int
    opsets: dict[str, int]
    graph: GraphFacts
    functions: Sequence[FunctionFacts]


class _Named(Protocol):
    @property
    def name(self) -> str | None: ...


def facts_of_proto(model: onnx.ModelProto) -> ModelFacts:
    """Collect the facts of a protobuf; nothing in it is trusted."""
    return ModelFacts(
        model.ir_version,
        _opsets((entry.domain, entry.version) for entry in model.opset_import),
        _proto_graph(model.graph),
        [_proto_function(function) for function in model.functions],
    )


def facts_of_ir(model: ir.Model) -> ModelFacts:
    """Collect the facts of an onnx-ir model."""
    return ModelFacts(
        model.ir_version,
        _opsets(model.opset_imports.items()),
        _ir_graph(model.graph),
        [_ir_function(function) for function in model.functions.values()],
    )


def default_domain(domain: str) -> str:
    """Return the one spelling of the default domain, and other domains as they are."""
    return "" if domain == "ai.onnx" else domain


def _opsets(entries: object) -> dict[str, int]:
    return {default_domain(domain): version for domain, version in entries}  # type: ignore[attr-defined]


def _proto_graph(graph: onnx.GraphProto) -> GraphFacts:
    return GraphFacts(
        graph.name,
        [value.name for value in graph.input],
        [tensor.name for tensor in graph.initializer]
        + [tensor.values.name for tensor in graph.sparse_initializer],
        [_proto_node(node) for node in graph.node],
        [value.name for value in graph.output],
    )


def _proto_node(node: onnx.NodeProto) -> NodeFacts:
    attributes = []
    graphs: list[GraphFacts] = []
    for attribute in node.attribute:
        kind = attribute.type
        attributes.append(
            AttributeFacts(attribute.name, kind, attribute.ref_attr_name, attribute.i)
        )
        if kind in _GRAPH_KINDS:
            nested = [attribute.g] if kind == onnx.AttributeProto.GRAPH else attribute.graphs
            graphs.extend(_proto_graph(graph) for graph in nested)
    return NodeFacts(
        node.name,
        default_domain(node.domain),
        node.op_type,
        node.overload,
        list(node.input),
        list(node.output),
        attributes,
        graphs,
    )


def _proto_function(function: onnx.FunctionProto) -> FunctionFacts:
    defaults = [attribute.name for attribute in function.attribute_proto]
    return FunctionFacts(
        default_domain(function.domain),
        function.name,
        function.overload,
        _opsets((entry.domain, entry.version) for entry in function.opset_import),
        frozenset([*function.attribute, *defaults]),
        GraphFacts(
            function.name,
            list(function.input),
            [],
            [_proto_node(node) for node in function.node],
            list(function.output),
        ),
    )


def _ir_graph(graph: ir.Graph) -> GraphFacts:
    return GraphFacts(
        graph.name or "",
        _names(graph.inputs),
        list(graph.initializers),
        [_ir_node(node) for node in graph],
        _names(graph.outputs),
    )


def _ir_node(node: ir.Node) -> NodeFacts:
    attributes = []
    graphs: list[GraphFacts] = []
    for attribute in node.attributes.values():
        refers_to = attribute.ref_attr_name or ""
        is_number = attribute.type == ir.AttributeType.INT and not attribute.is_ref()
        number = attribute.as_int() if is_number else 0
        attributes.append(AttributeFacts(attribute.name, attribute.type.value, refers_to, number))
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(_ir_graph(attribute.as_graph()))
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(_ir_graph(graph) for graph in attribute.as_graphs())
    return NodeFacts(
        node.name or "",
        node.domain,
        node.op_type,
        node.overload,
        ["" if value is None else value.name or "" for value in node.inputs],
        _names(node.outputs),
        attributes,
        graphs,
    )


def _ir_function(function: ir.Function) -> FunctionFacts:
    return FunctionFacts(
        function.domain,
        function.name,
        function.overload,
        _opsets(function.opset_imports.items()),
        frozenset(function.attributes),
        GraphFacts(
            function.name,
            _names(function.inputs),
            [],
            [_ir_node(node) for node in function],
            _names(function.outputs),
        ),
    )


def _names(values: Sequence[_Named]) -> list[str]:
    return [value.name or "" for value in values]

"""Walking over graphs and everything nested in them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.operators import where

CONTROL_FLOW = where(access="control")


def nodes_below(root: ir.Graph | ir.Function | ir.GraphView) -> Iterator[ir.Node]:
    """Yield the nodes of `root` and of the subgraphs in it, in order, holder first."""
    for node in root:
        yield node
        if node.attributes:
            for body in subgraphs(node):
                yield from nodes_below(body)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs directly held by attributes of `node`."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def control_bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the bodies of `node` if it is one of ONNX's own control flow ops.

    Only there is it known that a body reads outer values and may hold any nodes.
    """
    if node.attributes and node.domain == "" and node.op_type in CONTROL_FLOW:
        yield from subgraphs(node)


def control_nodes_below(root: ir.Graph | ir.Function | ir.GraphView) -> Iterator[ir.Node]:
    """Yield what `nodes_below` yields, but for the bodies of ops other than control flow."""
    for node in root:
        yield node
        for body in control_bodies(node):
            yield from control_nodes_below(body)


def roots(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """Yield the main graph, then each model-local function."""
    yield model.graph
    yield from model.functions.values()


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the functions' graphs and all graphs inside them."""
    yield model.graph
    yield from model.graph.subgraphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def names_in(model: ir.Model) -> set[str]:
    """Return every name of a value or node of `model`, those in subgraphs and functions too."""
    names: set[str] = set()
    for graph in model.graphs():
        names.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
    for root in roots(model):
        names.update(value.name or "" for value in root.inputs)
        for node in nodes_below(root):
            names.add(node.name or "")
            names.update(value.name or "" for value in node.outputs)
    return names


def take_name(used: set[str], name: str) -> str:
    """Return `name`, or the first of `name_1`, `name_2` ... that is not taken; now it is."""
    candidate, count = name, 0
    while candidate in used:
        count += 1
        candidate = f"{name}_{count}"
    used.add(candidate)
    return candidate

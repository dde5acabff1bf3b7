"""Nodes that a provider takes, put together in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from ortkit.graph.walk import nodes_below, subgraphs


def producers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that make what a node reads, or what graphs in it read.

    Among them are those inside of these graphs.
    """
    values = list(node.inputs)
    for body in subgraphs(node):
        values.extend(value for inner in nodes_below(body) for value in inner.inputs)
    for value in values:
        producer = value.producer() if value is not None else None
        if producer is not None:
            yield producer


def partition(nodes: Sequence[ir.Node], takes: Callable[[ir.Node], bool]) -> list[list[ir.Node]]:
    """Return groups of the nodes that `takes` says yes to, in order; linear in their number.

    A node's phase is how often a way to it changed between nodes that are taken and others.
    What a node of one phase makes and gets back through nodes that are not taken is of a later
    phase, so nodes of the same phase may run as one. Those that hang together do.

    Args:
        nodes: Of one graph, in topological order.
        takes: Which of them.
    """
    is_claimed = {node: bool(takes(node)) for node in nodes}
    phase: dict[ir.Node, int] = {}
    group_of: dict[ir.Node, ir.Node] = {}

    def first(node: ir.Node) -> ir.Node:
        while group_of[node] is not node:
            group_of[node] = group_of[group_of[node]]
            node = group_of[node]
        return node

    for node in nodes:
        before = [producer for producer in producers(node) if producer in phase]
        own = is_claimed[node]
        phase[node] = max((phase[item] + (is_claimed[item] != own) for item in before), default=0)
        if not own:
            continue
        group_of[node] = node
        for one in before:
            if is_claimed[one] and phase[one] == phase[node]:
                group_of[first(one)] = first(node)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in group_of:
        groups.setdefault(first(node), []).append(node)
    return list(groups.values())

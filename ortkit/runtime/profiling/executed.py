"""The graph that a session runs, and which nodes of the model its nodes stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.analysis.provenance import align, labels
from ortkit.graph.walk import nodes_below
from ortkit.runtime.profiling.trace.events import NodeSignature


@dataclass(frozen=True)
class Executed:
    """What is known of the nodes that ran."""

    nodes: Sequence[ir.Node | None]
    """[signatures] the node of the graph that ran; None: not known."""
    origins: Sequence[tuple[str, ...]]
    """[signatures] labels of the nodes of the original model that it stands for."""


def executed_nodes(
    signatures: Sequence[NodeSignature], graph: ir.Model, original: ir.Model | None
) -> Executed:
    """Find the nodes of the trace in the graph that ran, and those in the original model.

    Args:
        signatures: In the order of their first call.
        graph: ONNX Runtime's own optimized graph, or the model where it changed nothing.
        original: What the session was given; None: it is not asked for.
    """
    found = _found(signatures, graph)
    if original is None:
        return Executed(found, [()] * len(found))
    groups = _origins(original, graph)
    return Executed(found, [() if node is None else groups.get(node, ()) for node in found])


def _found(signatures: Sequence[NodeSignature], graph: ir.Model) -> list[ir.Node | None]:
    named: dict[tuple[str, str], list[ir.Node]] = {}
    unnamed: dict[str, list[ir.Node]] = {}
    for node in nodes_below(graph.graph):
        if node.name:
            named.setdefault((node.name, node.op_type), []).append(node)
        elif node.op_type != "Constant":
            unnamed.setdefault(node.op_type, []).append(node)
    found: list[ir.Node | None] = []
    left: dict[str, dict[tuple[str, int | None], list[int]]] = {}
    for number, signature in enumerate(signatures):
        nodes = named.get((signature.name, signature.op), [])
        # Two nodes of one name in two bodies: which of them it was is not known.
        found.append(nodes[0] if len(nodes) == 1 else None)
        if not nodes and signature.name == f"{signature.op}_{signature.index}":
            left.setdefault(signature.op, {}).setdefault(
                (signature.name, signature.index), []
            ).append(number)
    # ONNX Runtime calls a node without a name by its operator and its number, which its saved
    # graph does not hold; both list the nodes in the order in which they run.
    for op, calls in left.items():
        if len(unnamed.get(op, ())) != len(calls):
            continue
        for node, numbers in zip(unnamed[op], calls.values(), strict=True):
            for number in numbers:
                found[number] = node
    return found


def _origins(original: ir.Model, graph: ir.Model) -> Mapping[ir.Node, tuple[str, ...]]:
    called = labels(original)
    constants = {label for node, label in called.items() if node.op_type == "Constant"}
    by_label: dict[str, tuple[str, ...]] = {}
    for group in align(original, graph).groups:
        before = tuple(label for label in group.before if label not in constants)
        by_label.update(dict.fromkeys(group.after, before))
    return {node: by_label.get(label, ()) for node, label in labels(graph).items()}

"""Neighbours that one kernel could compute, and what it would have to read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortkit.operators import where
from ortkit.runtime.profiling.trace.events import NodeSignature, TensorShape
from ortkit.runtime.profiling.work import matched_inputs, tensor_bytes

#: What is computed element by element, or row by row, and what only moves elements.
_ACCESS = frozenset({"elementwise", "normalization", "reduction"})
FUSIBLE = (
    where(access=_ACCESS)
    | where(domain="com.microsoft", access=_ACCESS)
    | {"BiasSoftmax", "Transpose"}
)
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def regions_of(
    signatures: Sequence[NodeSignature], nodes: Mapping[int, ir.Node | None]
) -> tuple[list[int | None], dict[int, int]]:
    """Return for each signature its region, and for each region of two nodes or more its bytes.

    Args:
        signatures: The trace's.
        nodes: Number of a signature -> the node of the graph that ran.
    """
    members: dict[ir.Node, int] = {}
    for number, node in nodes.items():
        if node is not None and node.op_type in FUSIBLE and node.domain in _DOMAINS:
            members.setdefault(node, number)
    parents = {node: node for node in members}

    def root(node: ir.Node) -> ir.Node:
        while parents[node] is not node:
            parents[node] = node = parents[parents[node]]
        return node

    for node in members:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer in members and producer is not None and producer.graph is node.graph:
                parents[root(node)] = root(producer)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in members:
        groups.setdefault(root(node), []).append(node)
    numbers: dict[ir.Node, int] = {}
    sizes: dict[int, int] = {}
    for each in groups.values():
        if len(each) < 2:
            continue
        size = _bytes(each, [signatures[members[node]] for node in each])
        if size is not None:
            sizes[len(sizes)] = size
            numbers.update(dict.fromkeys(each, len(sizes) - 1))
    return [
        numbers.get(node) if (node := nodes.get(number)) is not None else None
        for number in range(len(signatures))
    ], sizes


def _bytes(nodes: Sequence[ir.Node], shown: Sequence[NodeSignature]) -> int | None:
    """Return the bytes that go into a region and out of it; None: a size is not known."""
    inside = set(nodes)
    tensors: dict[ir.Value, TensorShape] = {}
    for node, signature in zip(nodes, shown, strict=True):
        inputs = matched_inputs(node, signature.inputs)
        outputs = [value for value in node.outputs if value.name]
        if inputs is None or len(outputs) != len(signature.outputs):
            return None
        tensors.update(inputs)
        tensors.update(zip(outputs, signature.outputs, strict=True))
    total = 0
    for value, tensor in tensors.items():
        comes_from_outside = value.producer() not in inside
        goes_outside = value.is_graph_output() or any(
            reader not in inside for reader in value.consumers()
        )
        if comes_from_outside or goes_outside:
            total += tensor_bytes(tensor)
    return total

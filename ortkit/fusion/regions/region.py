"""A region: the nodes that one kernel computes, what enters and what leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.regions.naming import kind_of
from ortkit.fusion.regions.parameters import looks_up_rows, parameter_inputs
from ortkit.rewrite.scope import Scope

PASS = "fuse-regions"


@dataclass(frozen=True)
class FusedRegion:
    """Nodes to become one kernel; valid until the graph is next edited."""

    kind: str
    """A readable word, an identifier: it begins the op's name."""
    nodes: tuple[ir.Node, ...]
    """In topological order."""
    inputs: tuple[ir.Value, ...]
    """What it reads of others, in the order of first use, but for what is written into it."""
    outputs: tuple[ir.Value, ...]
    """What others read of it, in the order in which it is made."""
    recomputed: frozenset[ir.Node] = frozenset()
    """Those of its nodes that other regions have too: their values do not leave it."""

    @property
    def anchor(self) -> ir.Node:
        """The node where the fused node goes: the last one."""
        return self.nodes[-1]

    @property
    def at(self) -> str:
        """Its name in reports and ids: its last node's output that others read."""
        return self.outputs[-1].name or ""


def region_of(
    scope: Scope, nodes: Sequence[ir.Node], recomputed: frozenset[ir.Node] = frozenset()
) -> FusedRegion:
    """Return the region of `nodes`, which are in topological order; see `FusedRegion`."""
    inside = set(nodes)
    inputs: dict[ir.Value, None] = {}
    outputs: list[ir.Value] = []
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is None or value.producer() in inside or is_written(scope, node, index):
                continue
            inputs[value] = None
        if node not in recomputed:
            outputs += [value for value in node.outputs if _leaves(value, inside)]
    kind = kind_of(nodes)
    return FusedRegion(kind, tuple(nodes), tuple(inputs), tuple(outputs), recomputed)


def is_written(scope: Scope, node: ir.Node, index: int) -> bool:
    """Say whether an input is a constant that the region's body holds: a number or a parameter."""
    value = node.inputs[index]
    if index == 1 and looks_up_rows(scope, node):
        return False
    if value is None or not scope.is_constant(value):
        return index in parameter_inputs(node)
    return index in parameter_inputs(node) or scope.array(value, 1) is not None


def components(nodes: Sequence[ir.Node]) -> list[tuple[ir.Node, ...]]:
    """Return the connected parts of `nodes`, each in the given order, by their first nodes."""
    parts: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        own = [node]
        for value in node.inputs:
            producer = None if value is None else value.producer()
            part = None if producer is None else parts.get(producer)
            if part is not None and part is not own:
                part += own
                for moved in own:
                    parts[moved] = part
                own = part
        parts[node] = own
    order = {node: index for index, node in enumerate(nodes)}
    distinct = {id(part): part for part in parts.values()}.values()
    return [tuple(sorted(part, key=order.__getitem__)) for part in distinct]


def _leaves(value: ir.Value, inside: Iterable[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())

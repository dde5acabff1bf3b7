"""The partition of a graph: members of one iteration space in groups that are no cycle.

Every node gets a level, in one walk in topological order. An edge inside a group keeps the level,
every other edge raises it. So no path that leaves a group comes back to it, and no two groups
need each other: each may become one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.members import Members
from ortkit.fusion.regions.space import NodeSpace, Space
from ortkit.operators.info import Access
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope, captured_values

#: A region of more nodes is cut.
MAX_NODES = 32
#: What a GPU may compute again for each element: as long as moving it takes, with some to spare.
REPEATED_OPERATIONS = 48


@dataclass
class _Group:
    """Nodes that may become one; a node that is no member has one for itself."""

    level: int
    space: Space | None = None
    nodes: list[int] = field(default_factory=list)
    ceiling: int | None = None
    """The lowest level outside that reads from the group: it may not rise to it."""
    merged: _Group | None = None
    """What it has become a part of."""

    def can_rise(self, level: int) -> bool:
        return self.ceiling is None or level < self.ceiling


@dataclass(frozen=True)
class Partition:
    """Groups of members, each in topological order, and the nodes that might have been some."""

    groups: tuple[tuple[ir.Node, ...], ...]
    refused: tuple[tuple[ir.Node, str], ...]


def partition(
    scope: Scope, graph: ir.Graph, excluded: Collection[ir.Node] = frozenset()
) -> Partition:
    """Return the groups of one graph; what is nested in it is not looked at.

    Linear in the nodes and edges of the graph.

    Args:
        scope: The graph's, or that of a graph around it.
        graph: Its nodes must be in topological order.
        excluded: Nodes that belong to other regions already.
    """
    return _Partitioner(scope, graph, excluded).run()


class _Partitioner:
    def __init__(self, scope: Scope, graph: ir.Graph, excluded: Collection[ir.Node]) -> None:
        self._scope = scope
        self._graph = graph
        self._nodes = list(graph)
        self._members = Members(scope)
        self._access: dict[ir.Node, Access | None] = {}
        self._excluded = excluded
        self._group_of: dict[ir.Node, _Group] = {}
        self._refused: list[tuple[ir.Node, str]] = []

    def run(self) -> Partition:
        for node in self._nodes:
            self._access[node] = None if node in self._excluded else self._judged(node)
        for index, node in enumerate(self._nodes):
            self._assign(index, node)
        groups: dict[int, _Group] = {}
        for node in self._nodes:
            group = self._group(node)
            if group.space is not None:
                groups.setdefault(id(group), group)
        made = tuple(
            tuple(self._nodes[index] for index in sorted(group.nodes)) for group in groups.values()
        )
        return Partition(made, tuple(self._refused))

    def _judged(self, node: ir.Node) -> Access | None:
        """Return the family of a node that may be a member; None, and noted why, for others."""
        access = self._members.access(node)
        if not isinstance(access, Refused):
            return access
        self._refused.append((node, access.reason))
        return None

    def _group(self, node: ir.Node) -> _Group:
        group = self._group_of[node]
        while group.merged is not None:
            if group.merged.merged is not None:
                group.merged = group.merged.merged
            group = group.merged
        self._group_of[node] = group
        return group

    def _assign(self, index: int, node: ir.Node) -> None:
        """Give the node its group and level."""
        access = self._access[node]
        sources = self._sources(node)
        if access is None:
            level = max((group.level + 1 for group, _ in sources), default=0)
            self._settle(node, _Group(level), sources)
            return
        shape = NodeSpace(self._scope, node, access)
        wanted: list[_Group] = []
        level = 0
        for group, values in sources:
            fits = self._may_grow(group, shape, access, values) and _fit([*wanted, group])
            if fits:
                wanted.append(group)
            level = max(level, group.level + (not fits))
        # One that cannot rise stands below, and is read from there.
        joined = self._merge([g for g in wanted if g.level == level or g.can_rise(level)], level)
        joined.space = shape.added_to(joined.space or Space())
        joined.nodes.append(index)
        self._settle(node, joined, sources)

    def _settle(
        self, node: ir.Node, group: _Group, sources: Iterable[tuple[_Group, list[ir.Value]]]
    ) -> None:
        self._group_of[node] = group
        for source, _ in sources:
            if source is not group and source.merged is not group:
                source.ceiling = _lower(source.ceiling, group.level)

    def _merge(self, groups: Sequence[_Group], level: int) -> _Group:
        """Return one group at `level` in the place of those that fit; a new one for none."""
        if not groups:
            return _Group(level)
        first, *others = groups
        first.level = level
        for other in others:
            first.space = _joined(first.space, other.space)
            first.nodes += other.nodes
            first.ceiling = _lower(first.ceiling, other.ceiling)
            other.merged = first
        return first

    def _sources(self, node: ir.Node) -> list[tuple[_Group, list[ir.Value]]]:
        """Return the groups that the node reads from, with the values, in the order of inputs."""
        found: dict[int, tuple[_Group, list[ir.Value]]] = {}
        for value in captured_values(node) if node.attributes else node.inputs:
            producer = None if value is None else value.producer()
            if value is None or producer is None or producer.graph is not self._graph:
                continue
            if producer.op_type == "Constant" and producer.domain == "":
                continue
            group = self._group(producer)
            found.setdefault(id(group), (group, []))[1].append(value)
        return list(found.values())

    def _may_grow(
        self, group: _Group, shape: NodeSpace, access: Access, values: Sequence[ir.Value]
    ) -> bool:
        if group.space is None or len(group.nodes) >= MAX_NODES:
            return False
        if not all(shape.takes(group.space, value) for value in values):
            return self._is_repeated(group, group.space, access, values)
        # A value that others outside need would be an output of another shape.
        return access != "view" or all(map(self._is_read_by_members, values))

    def _is_repeated(
        self, group: _Group, space: Space, access: Access, values: Sequence[ir.Value]
    ) -> bool:
        """Say whether the node may compute the group again for each of its own points.

        A GPU waits for memory, not for a few operations, and a launch less is worth more. Only
        one reads what the group makes, since an output would be of another shape.
        """
        if (
            not self._scope.traits.repeats_cheap_nodes
            or access != "elementwise"
            or space.row is not None
        ):
            return False
        if any(len(value.uses()) > 1 or value.is_graph_output() for value in values):
            return False
        nodes = [self._nodes[index] for index in group.nodes]
        if len({value for node in nodes for value in node.outputs} - _inside(nodes)) > 1:
            return False
        return sum(CostModel.operations(node) for node in nodes) <= REPEATED_OPERATIONS

    def _is_read_by_members(self, value: ir.Value) -> bool:
        if value.is_graph_output():
            return False
        return all(self._access.get(use.node) is not None for use in value.uses())


def _inside(nodes: Sequence[ir.Node]) -> set[ir.Value]:
    """Return the values that only `nodes` read."""
    members = set(nodes)
    return {
        value
        for node in nodes
        for value in node.outputs
        if not value.is_graph_output() and all(use.node in members for use in value.uses())
    }


def _fit(groups: Sequence[_Group]) -> bool:
    """Say whether the groups may be one, with another node."""
    if sum(len(group.nodes) for group in groups) >= MAX_NODES:
        return False
    space: Space | None = Space()
    for group in groups:
        space = _joined(space, group.space)
    return space is not None


def _joined(left: Space | None, right: Space | None) -> Space | None:
    return None if left is None or right is None else left.joined(right)


def _lower(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return left if right is None else right
    return min(left, right)

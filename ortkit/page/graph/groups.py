"""From the paths of nodes to groups that can be drawn: without a cycle between their items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ortkit.page.graph.cycles import strong_components
from ortkit.page.graph.document import Graph, Group
from ortkit.page.graph.layers import layers_of

#: Groups of fewer nodes are drawn as their nodes.
LEAST = 4
#: So are groups that hold more than this part of the nodes of the group around them.
_BULK = 0.6

Pairs = Sequence[tuple[int, int]]


@dataclass(eq=False)
class _Box:
    """A group while it is formed."""

    path: tuple[str, ...] = ()
    nodes: list[int] = field(default_factory=list)
    boxes: list[_Box] = field(default_factory=list)

    def size(self) -> int:
        return sum(1 for _ in self.leaves())

    def leaves(self) -> Iterator[int]:
        yield from self.nodes
        for box in self.boxes:
            yield from box.leaves()


def with_groups(graph: Graph) -> Graph:
    """Return a graph with its groups, each of them laid out in layers.

    A group of few nodes is left out, and so is one that would make a cycle with others. Nodes
    that lie on the way from a group back to it are taken into it.
    """
    root = _tree(graph)
    edges = list(dict.fromkeys((edge.source, edge.target) for edge in graph.edges))
    boxes: list[tuple[_Box, int, Pairs]] = []
    pending: list[tuple[_Box, int, Pairs]] = [(root, -1, edges)]
    while pending:
        box, parent, inside = pending.pop(0)
        _untangle(box, inside)
        _lift_only_child(box)
        item_of = _items(box)
        within: list[list[tuple[int, int]]] = [[] for _ in box.boxes]
        for source, target in inside:
            if (item := item_of[source]) < 0 and item == item_of[target]:
                within[~item].append((source, target))
        for inner, inner_boxes in zip(box.boxes, within, strict=True):
            pending.append((inner, len(boxes), inner_boxes))
        boxes.append((box, parent, inside))
    return _drawn(graph, boxes, edges)


def _drawn(graph: Graph, boxes: Sequence[tuple[_Box, int, Pairs]], edges: Pairs) -> Graph:
    number = {box: at for at, (box, _, _) in enumerate(boxes)}
    group_of = [0] * len(graph.nodes)
    for box, at in number.items():
        for node in box.nodes:
            group_of[node] = at
    parents = [parent for _, parent, _ in boxes]
    crossing = _crossing(edges, group_of, parents)
    groups = []
    for at, (box, parent, inside) in enumerate(boxes):
        numbers = [number[inner] for inner in box.boxes]
        item_of = {
            node: item if item >= 0 else ~numbers[~item] for node, item in _items(box).items()
        }
        entering, leaving = crossing.get(at, ((), ()))
        layers, routes = layers_of(
            [*box.nodes, *(~number for number in numbers)],
            [(item_of[source], item_of[target]) for source, target in inside],
            [(source, item_of[target]) for source, target in entering],
            [(item_of[source], source) for source in leaving],
            len(graph.nodes),
        )
        name = "/".join(box.path[len(boxes[parent][0].path) if parent >= 0 else 0 :])
        groups.append(Group(name, box.path, parent, layers, routes))
    return replace(graph, groups=tuple(groups), group_of=tuple(group_of))


def _crossing(
    edges: Pairs, group_of: Sequence[int], parents: Sequence[int]
) -> Mapping[int, tuple[list[tuple[int, int]], list[int]]]:
    """Return for each group the edges that enter it and the nodes whose values leave it."""
    found: dict[int, tuple[dict[tuple[int, int], None], dict[int, None]]] = {}
    for source, target in edges:
        if group_of[source] == group_of[target]:
            continue
        above = _above(group_of[source], parents)
        below = _above(group_of[target], parents)
        for group in below:
            if group not in above:
                found.setdefault(group, ({}, {}))[0][source, target] = None
        for group in above:
            if group not in below:
                found.setdefault(group, ({}, {}))[1][source] = None
    return {group: (list(entering), list(leaving)) for group, (entering, leaving) in found.items()}


def _above(group: int, parents: Sequence[int]) -> list[int]:
    found = []
    while group >= 0:
        found.append(group)
        group = parents[group]
    return found


def _tree(graph: Graph) -> _Box:
    root = _Box()
    known: dict[tuple[str, ...], _Box] = {(): root}
    for at, node in enumerate(graph.nodes):
        for size in range(1, len(node.path) + 1):
            if node.path[:size] not in known:
                known[node.path[:size]] = made = _Box(node.path[:size])
                known[node.path[: size - 1]].boxes.append(made)
        known[node.path].nodes.append(at)
    _dissolve_small(root)
    return root


def _dissolve_small(box: _Box) -> None:
    for inner in list(box.boxes):
        _dissolve_small(inner)
        count = inner.size()
        if count < LEAST or (box.path and count > _BULK * box.size()):
            _dissolve(box, inner)


def _dissolve(box: _Box, inner: _Box) -> None:
    box.boxes.remove(inner)
    box.boxes += inner.boxes
    box.nodes += inner.nodes


def _lift_only_child(box: _Box) -> None:
    """Draw no box in a box where nothing else is in it."""
    while box.path and not box.nodes and len(box.boxes) == 1:
        (inner,) = box.boxes
        box.path, box.nodes, box.boxes = inner.path, inner.nodes, inner.boxes


def _items(box: _Box) -> dict[int, int]:
    """Return for each node below a box the node itself, or ~ the place of the box it is in."""
    found = {node: node for node in box.nodes}
    for at, inner in enumerate(box.boxes):
        found.update(dict.fromkeys(inner.leaves(), ~at))
    return found


def _untangle(box: _Box, edges: Pairs) -> None:
    """Change a box until its items are in no cycle: the largest of its boxes takes nodes in."""
    while True:
        item_of = _items(box)
        successors: dict[int, set[int]] = {item: set() for item in item_of.values()}
        for source, target in edges:
            if item_of[source] != item_of[target]:
                successors[item_of[source]].add(item_of[target])
        tangles = strong_components(successors)
        if not tangles:
            return
        inner = list(box.boxes)
        is_changed = False
        for tangle in tangles:
            inner_boxes = sorted((inner[~item] for item in tangle if item < 0), key=_Box.size)
            for one in inner_boxes[:-1]:
                _dissolve(box, one)
                is_changed = True
            if len(inner_boxes) == 1:
                for node in (item for item in tangle if item >= 0):
                    box.nodes.remove(node)
                    inner_boxes[0].nodes.append(node)
                    is_changed = True
        if not is_changed:
            return  # a cycle of nodes: the model is none, and layers break it

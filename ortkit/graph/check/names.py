"""Names in graphs: defined once, defined before use or sortable, and never in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ortkit.errors import ModelError
from ortkit.graph.check.graph_facts import GraphFacts, NodeFacts

# Looking for a near name among more than this takes longer than the answer is worth.
_NEAR_NAME_LIMIT = 5000
_CYCLE_SHOWN = 6


def check_scopes(graph: GraphFacts, where: str) -> bool:
    """Check the names of a graph and of all graphs inside it.

    Returns:
        Whether every graph lists its nodes in an order in which they can run.

    Raises:
        ModelError: A name is undefined or defined twice, an output has no producer, or nodes
            depend on each other in a circle.
    """
    scopes = _Scopes()
    scopes.check(graph, [], where)
    return scopes.is_sorted


class _Scopes:
    def __init__(self) -> None:
        self.is_sorted = True

    def check(self, graph: GraphFacts, outer: list[dict[str, int]], where: str) -> set[str]:
        """Check one graph and return the names that it takes from the graphs around it."""
        defined = _definitions(graph, where)
        visible = [*outer, defined]
        used: set[str] = set()
        in_order = True
        for index, node in enumerate(graph.nodes):
            names = node.inputs
            if node.graphs:
                inside = f"{where}{node.label(index)}: "
                names = [*names, *self._nested(node, visible, inside)]
            for name in names:
                producer = defined.get(name)
                if producer is None:
                    if not name:
                        continue
                    _check_unused(name, outer, defined, f"{where}{node.label(index)}")
                    used.add(name)
                elif producer >= index:
                    in_order = False
        if not in_order:
            self._check_order(graph, defined, where)
        _check_outputs(graph, defined, outer, where)
        return used

    def _nested(self, node: NodeFacts, visible: list[dict[str, int]], where: str) -> list[str]:
        names: list[str] = []
        for graph in node.graphs:
            names.extend(sorted(self.check(graph, visible, where)))
        return names

    def _check_order(self, graph: GraphFacts, defined: dict[str, int], where: str) -> None:
        """Find a circle; without one the nodes are merely listed in another order."""
        self.is_sorted = False
        reads = [
            [defined[name] for name in _all_reads(node) if defined.get(name, -1) >= 0]
            for node in graph.nodes
        ]
        cycle = _find_cycle(reads)
        if not cycle:
            return
        shown = [graph.nodes[index].label(index) for index in cycle[:_CYCLE_SHOWN]]
        middle = " -> ..." if len(cycle) > _CYCLE_SHOWN else ""
        raise ModelError(
            f"the graph is cyclic: {' -> '.join(shown)}{middle} -> {shown[0]}",
            where=f"{where}graph {graph.name!r}",
            fix="export the model again; no order of the nodes can run",
        )


def _definitions(graph: GraphFacts, where: str) -> dict[str, int]:
    """Map each name that the graph defines to the node that makes it, or to -1."""
    defined: dict[str, int] = {}
    for name in graph.inputs:
        _define(defined, name, -1, f"{where}graph {graph.name!r}", "an input")
    initializers: set[str] = set()
    for name in graph.initializers:
        if name in initializers:
            raise _twice(name, f"{where}graph {graph.name!r}", "an initializer")
        initializers.add(name)
        if name not in defined:  # an initializer may be an input's default
            _define(defined, name, -1, f"{where}graph {graph.name!r}", "an initializer")
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name in defined:
                raise _twice(name, f"{where}{node.label(index)}", "an output")
            if name:
                defined[name] = index
    return defined


def _define(defined: dict[str, int], name: str, index: int, where: str, what: str) -> None:
    if not name:
        raise ModelError(f"{what} has no name", where=where, fix="name it, or export again")
    if name in defined:
        raise _twice(name, where, what)
    defined[name] = index


def _twice(name: str, where: str, what: str) -> ModelError:
    return ModelError(
        f"{what} is called {name!r}, and so is an earlier value of the same graph",
        where=where,
        fix="give each value its own name, or export the model again",
    )


def _check_unused(
    name: str, outer: Sequence[dict[str, int]], defined: dict[str, int], where: str
) -> None:
    if any(name in scope for scope in outer):
        return
    raise ModelError(
        f"input {name!r} is defined nowhere{_near(name, defined)}",
        where=where,
        fix="check that the file is complete, or export the model again",
    )


def _check_outputs(
    graph: GraphFacts, defined: dict[str, int], outer: Sequence[dict[str, int]], where: str
) -> None:
    for name in graph.outputs:
        if name and name in defined:
            continue
        if any(name in scope for scope in outer):
            raise ModelError(
                f"output {name!r} belongs to a graph around this one",
                where=f"{where}graph {graph.name!r}",
                fix="return it through an Identity node",
            )
        raise ModelError(
            f"no node makes output {name!r}{_near(name, defined)}",
            where=f"{where}graph {graph.name!r}",
            fix="check that the file is complete, or export the model again",
        )


def _near(name: str, defined: dict[str, int]) -> str:
    if len(defined) > _NEAR_NAME_LIMIT:
        return ""
    found = get_close_matches(name, defined, n=1)
    return f" (there is {found[0]!r})" if found else ""


def _all_reads(node: NodeFacts) -> list[str]:
    """Return the names a node reads, those that its inner graphs may read included."""
    names = list(node.inputs)
    for graph in node.graphs:
        own = {*graph.inputs, *graph.initializers}
        own.update(name for inner in graph.nodes for name in inner.outputs)
        for inner in graph.nodes:
            names.extend(name for name in _all_reads(inner) if name not in own)
    return names


def _find_cycle(reads: list[list[int]]) -> list[int]:
    """Return nodes that read each other in a circle, in the order of the data, or nothing."""
    waiting = [len(producers) for producers in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for index, producers in enumerate(reads):
        for producer in producers:
            readers[producer].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    while ready:
        for reader in readers[ready.pop()]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    stuck = {index for index, count in enumerate(waiting) if count}
    if not stuck:
        return []
    # Every stuck node reads a stuck node: following them must come back.
    path: list[int] = []
    position: dict[int, int] = {}
    index = min(stuck)
    while index not in position:
        position[index] = len(path)
        path.append(index)
        index = next(producer for producer in reads[index] if producer in stuck)
    cycle = path[position[index] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]

"""Which nodes of a graph make certain values from certain others: a closed set, or why not.

What is planned on a rewritten copy is claimed in the original. The values at the ends of a region
keep their names, and between these names lie the original's nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.constants import is_constant
from ortkit.refusal import Refused, needed, refusals
from ortkit.rewrite.scope import captured_values


@dataclass(frozen=True)
class Cut:
    """A set of nodes that may become one.

    Args:
        nodes: In the graph's order; nothing that they make is read by others but `outputs`, and
            no way out of the set leads back into it.
        inputs: What the nodes read of others, constants left out, in the order of first use. Some
            may be read for nothing, such as a shape that is known to be what it is.
        outputs: What was asked for.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


class Cuts:
    """Finds cuts in one graph, which does not change meanwhile."""

    def __init__(self, model: ir.Model) -> None:
        """Index the main graph of a model, whose nodes are in topological order."""
        graph = model.graph
        self._model = model
        self._nodes = list(graph)
        self._place = {node: index for index, node in enumerate(self._nodes)}
        self._values = {
            value.name: value for node in self._nodes for value in node.outputs if value.name
        }
        self._entering: dict[str, ir.Value] = {
            value.name: value for value in graph.inputs if value.name
        }
        self._kept = {value for value in graph.outputs if value is not None}
        self._reads = [tuple(captured_values(node)) for node in self._nodes]
        self._readers: dict[ir.Value, list[int]] = {}
        for index, values in enumerate(self._reads):
            for value in values:
                self._readers.setdefault(value, []).append(index)
                if value.name and value.producer() is None:
                    self._entering.setdefault(value.name, value)

    @refusals
    def find(self, inputs: Iterable[str], outputs: Sequence[str]) -> Cut | Refused:
        """Return the nodes that make `outputs` from `inputs` and constants.

        Args:
            inputs: Names of values, constants left out.
            outputs: Names of computed values.
        """
        wanted: list[ir.Value] = []
        for name in outputs:
            value = self._values.get(name)
            if value is None:
                return Refused(f"{name!r} is no value of the model as it was handed over")
            wanted.append(value)
        given: dict[ir.Value, None] = {}
        for name in inputs:
            value = self._values.get(name) or self._entering.get(name)
            if value is None:
                return Refused(f"{name!r} is no value of the model as it was handed over")
            given[value] = None
        inside = needed(self._closed(given, wanted))
        if kept := [value for value in wanted if not self._leaves(value, inside)]:
            return Refused(f"{kept[0].name!r} is read by none but this region")
        read: dict[ir.Value, None] = {}
        for index in inside:
            for value in self._reads[index]:
                if self._maker(value) not in inside and not is_constant(value, self._model):
                    read[value] = None
        if missing := [value for value in given if value not in read]:
            return Refused(
                f"{missing[0].name!r} is read by no node that only this region replaces"
            )
        if (back := self._way_back(inside, read)) is not None:
            return Refused(f"{back!r} is made from a result of the region, and read by it")
        return Cut(tuple(self._nodes[index] for index in inside), tuple(read), tuple(wanted))

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that read a value, or hold a graph that does."""
        return [self._nodes[index] for index in self._readers.get(value, ())]

    def indices(self, nodes: Iterable[ir.Node]) -> list[int]:
        """Return the numbers of nodes, by which `feeders` calls them."""
        return [self._place[node] for node in nodes]

    def feeders(self) -> dict[int, list[int]]:
        """Return for each node those that make what it reads."""
        makers = ([self._maker(value) for value in values] for values in self._reads)
        return {
            index: [maker for maker in each if maker is not None]
            for index, each in enumerate(makers)
        }

    def _maker(self, value: ir.Value) -> int | None:
        """Return the place of the node that makes a value; None if it is of no node here."""
        producer = value.producer()
        return None if producer is None else self._place.get(producer)

    def _closed(
        self, given: Collection[ir.Value], wanted: Sequence[ir.Value]
    ) -> list[int] | Refused:
        """Return the places of the nodes that only `wanted` needs, from `given` on, sorted.

        From the last node to the first: whether all readers of a node are inside is then known.
        """
        inside: set[int] = set()
        leaving = set(wanted)
        seen = {index for value in wanted if (index := self._maker(value)) is not None}
        pending = [-index for index in seen]
        heapq.heapify(pending)
        while pending:
            index = -heapq.heappop(pending)
            node = self._nodes[index]
            reason = self._open(node, inside, given, leaving)
            if reason is not None:
                if any(value in leaving for value in node.outputs):
                    return Refused(reason)
                continue  # computed as before, and read from there
            inside.add(index)
            for value in self._reads[index]:
                maker = self._maker(value)
                if value not in given and maker is not None and maker not in seen:
                    seen.add(maker)
                    heapq.heappush(pending, -maker)
        return sorted(inside)

    def _open(
        self, node: ir.Node, inside: set[int], given: Collection[ir.Value], leaving: set[ir.Value]
    ) -> str | None:
        """Say why a node cannot be inside; None if it can."""
        if any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
            return f"a {node.op_type} with a graph of its own"
        for value in node.outputs:
            if value in given:
                return f"{value.name!r} is read and made"
            if value in leaving:
                continue
            readers = self._readers.get(value, ())
            if value in self._kept or not all(reader in inside for reader in readers):
                return f"{value.name!r} is read outside of the region too"
        return None

    def _leaves(self, value: ir.Value, inside: Sequence[int]) -> bool:
        """Say whether ONNX Runtime makes a value a result of the group: if others read it."""
        members = set(inside)
        return value in self._kept or any(
            reader not in members for reader in self._readers.get(value, ())
        )

    def _way_back(self, inside: Sequence[int], read: Iterable[ir.Value]) -> str | None:
        """Return what is read and made from something inside; None if nothing is."""
        first, members = inside[0], set(inside)
        for value in read:
            start = self._maker(value)
            pending = [] if start is None or start < first else [start]
            seen = set(pending)
            while pending:
                for source in self._reads[pending.pop()]:
                    maker = self._maker(source)
                    if maker in members:
                        return value.name or ""
                    if maker is not None and maker > first and maker not in seen:
                        seen.add(maker)
                        pending.append(maker)
        return None


_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})

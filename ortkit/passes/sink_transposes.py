"""sink-transposes: elementwise work before Transposes that then cancel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.permutation import Perm, Permuted, is_inverse, permuted
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe


@dataclass(frozen=True)
class SinkTransposes(GraphPass):
    """Move Transposes after the ops that follow them, where that leaves fewer Transposes.

    Before:
        t = Transpose<perm = [0, 2, 3, 1]>(Conv(x, V));  u = Relu(t)
        y = Conv(Transpose<perm = [0, 3, 1, 2]>(u), W)
    After:
        y = Conv(Relu(Conv(x, V)), W)

    All ops that transposed values reach are taken together: elementwise ones, reductions,
    Concat, Pad, Softmax. Constants and axes are changed to fit.

    Skips:
        * Where as many Transposes would be needed after the ops as there were before.
        * An op that also reads a value which varies and is not transposed the same way.

    Source:
        f(Transpose(x)) = Transpose(f(x)) for every f that does not look at the order of axes.
    """

    name: ClassVar[str] = "sink-transposes"

    def run(self, scope: Scope) -> None:
        for island in _islands(scope, self.name):
            if island.saved > 0:
                self._rewrite(scope, island)
            else:
                reason = "as many Transposes would be needed after the ops"
                scope.log.miss(self.name, describe(island.roots[0]), reason)

    def _rewrite(self, scope: Scope, island: _Island) -> None:
        root = island.roots[0]
        if not scope.log.claim(self.name, "sink", root.outputs[0].name or "", describe(root)):
            return
        source = {id(node.outputs[0]): node.inputs[0] for node in island.roots}
        ends: list[tuple[ir.Value, ir.Value]] = []
        for node, plan in island.nodes:
            site = Site(scope, node, self.name)
            old, new = node.outputs[0], _emit(site, plan, source)
            source[id(old)] = new
            if plan.is_plain:
                ends.append((old, new))
            elif island.is_needed(old):
                perm = {"perm": plan.perm}
                ends.append((old, site.op("Transpose", [new], perm, name=f"{old.name}/sunk")))
        for inverse in island.inverses:
            moved = source[id(inverse.inputs[0])]
            assert moved is not None, "a Transpose has an input"
            scope.replace(inverse.outputs[0], moved)
        for old, new in ends:
            scope.replace(old, new)
        for node in [*(node for node, _ in reversed(island.nodes)), *island.roots]:
            if node.graph is not None:
                scope.drop_if_unused(node)


def _emit(site: Site, plan: Permuted, source: dict[int, ir.Value | None]) -> ir.Value:
    """Insert the node's counterpart before it."""
    inputs = [
        site.constant(plan.constants[index])
        if index in plan.constants
        else source.get(id(value), value)
        for index, value in enumerate(site.node.inputs)
    ]
    attributes = {name: attribute.value for name, attribute in site.node.attributes.items()}
    attributes.update(plan.attributes)
    node, name = site.node, f"{site.output.name}/moved"
    return site.op(node.op_type, inputs, attributes, domain=node.domain, name=name)


@dataclass
class _Island:
    """Transposes of one kind, and all ops that can work on what these transpose."""

    roots: list[ir.Node] = field(default_factory=list)
    nodes: list[tuple[ir.Node, Permuted]] = field(default_factory=list)
    inverses: list[ir.Node] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    """Ids of the nodes that will read, or stand for, what is not transposed."""

    def is_needed(self, value: ir.Value) -> bool:
        """Say whether something outside reads the transposed value."""
        if value.is_graph_output():
            return True
        return any(id(node) not in self.inside for node in value.consumers())

    @property
    def saved(self) -> int:
        """How many Transposes less there would be."""
        gone = sum(not self.is_needed(node.outputs[0]) for node in self.roots)
        made = sum(
            not plan.is_plain and self.is_needed(node.outputs[0]) for node, plan in self.nodes
        )
        return gone + len(self.inverses) - made


def _islands(scope: Scope, pass_name: str) -> list[_Island]:
    """Return what could be moved, in the order of the graph."""
    groups = _Groups()
    perms: dict[int, Perm] = {}
    found: list[tuple[ir.Node, Permuted | None]] = []
    for node in list(scope.nodes()):
        site = Site(scope, node, pass_name)
        own = [_perm_of(value, node, perms) for value in node.inputs]
        perm = _root_perm(site)
        if perm is not None and not any(own):
            perms[id(node.outputs[0])] = perm
            found.append((node, None))
        elif any(own) and len(node.outputs) == 1 and (plan := permuted(site, own)) is not None:
            values = [value for value, item in zip(node.inputs, own, strict=True) if item]
            groups.join([*values, *([] if plan.is_plain else node.outputs)])
            found.append((node, plan))
            if not plan.is_plain:
                perms[id(node.outputs[0])] = plan.perm
    return _collect(found, groups, perms)


def _collect(
    found: list[tuple[ir.Node, Permuted | None]], groups: _Groups, perms: dict[int, Perm]
) -> list[_Island]:
    islands: dict[int, _Island] = {}
    for node, plan in found:
        value = node.outputs[0]
        if plan is not None:
            value = next(v for v in node.inputs if v is not None and id(v) in perms)
        island = islands.setdefault(groups.find(value), _Island())
        if plan is None:
            island.roots.append(node)
        else:
            island.nodes.append((node, plan))
            island.inside.add(id(node))
    for node, plan in found:
        if plan is not None and not plan.is_plain:
            value = node.outputs[0]
            island = islands[groups.find(value)]
            inverses = list(_inverses(value, perms[id(value)]))
            island.inverses.extend(inverses)
            island.inside.update(id(inverse) for inverse in inverses)
    return [island for island in islands.values() if island.nodes]


def _inverses(value: ir.Value, perm: Perm) -> Iterator[ir.Node]:
    """Yield the Transposes that undo the one of `value`; only one may be what a graph returns."""
    has_output = False
    producer = value.producer()
    for node in value.consumers():
        if not is_inverse(node, perm) or producer is None or node.graph is not producer.graph:
            continue
        if node.outputs[0].is_graph_output():
            if has_output:
                continue
            has_output = True
        yield node


def _perm_of(value: ir.Value | None, node: ir.Node, perms: dict[int, Perm]) -> Perm | None:
    """Return how `value` is permuted where it comes from the graph that `node` is in."""
    producer = None if value is None else value.producer()
    if producer is None or producer.graph is not node.graph:
        return None
    return perms.get(id(value))


def _root_perm(site: Site) -> Perm | None:
    if site.node.domain != "" or site.node.op_type != "Transpose":
        return None
    if site.scope.is_constant(site.input(0)):
        return None
    perm = site.perm() if "perm" in site.node.attributes else None
    return None if perm is None or perm == tuple(sorted(perm)) else perm


class _Groups:
    """Which values are of one island."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def find(self, value: ir.Value) -> int:
        """Return the number of the group of `value`."""
        key = id(value)
        while (up := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(up, up)
            key = up
        return key

    def join(self, values: Sequence[ir.Value | None]) -> None:
        """Put these values into one group."""
        first, *others = (value for value in values if value is not None)
        for other in others:
            self._parent[self.find(other)] = self.find(first)

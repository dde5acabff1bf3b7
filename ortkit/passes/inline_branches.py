"""inline-branches: an If whose condition is constant is the branch that it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.walk import control_bodies, subgraphs
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe
from ortkit.rewrite.sweep import is_default


@dataclass(frozen=True)
class InlineBranches(GraphPass):
    """Put the nodes of the branch that is always taken in place of an If.

    Before:
        y = If(true) {then: t = Relu(x); return t} {else: e = Neg(x); return e}
    After:
        y = Relu(x)

    What a branch returns without computing it gets an Identity where the graph returns it too.
    Values of the branch whose names are used elsewhere as well are renamed.

    Skips:
        * A condition that is not a constant of the model.

    Source:
        ONNX If-1 ... 25.
    """

    name: ClassVar[str] = "inline-branches"

    def run(self, scope: Scope) -> None:
        if any(is_default(node, "If") for node in scope.nodes()):
            names = Counter(value.name for value in _defined(scope.root))
            self._walk(scope, list(scope.root), names)

    def _walk(self, scope: Scope, nodes: Sequence[ir.Node], names: Counter[str | None]) -> None:
        for node in nodes:
            if node.graph is None:
                continue
            branch = _chosen_branch(scope, node)
            label = describe(node)
            if branch is not None and scope.log.claim(
                self.name, "inline", node.outputs[0].name or "", label
            ):
                self._walk(scope, _inline(scope, node, branch, names), names)
                continue
            for body in control_bodies(node):
                self._walk(scope, list(body), names)


def _chosen_branch(scope: Scope, node: ir.Node) -> ir.Graph | None:
    """Return the branch that `node` takes in every run, None if it is no If or that varies."""
    if not is_default(node, "If"):
        return None
    condition = scope.array(node.inputs[0], 1)
    if condition is None or condition.size != 1:
        return None
    branch = node.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"]
    return None if branch.is_ref() else branch.as_graph()


def _inline(
    scope: Scope, node: ir.Node, branch: ir.Graph, names: Counter[str | None]
) -> list[ir.Node]:
    """Move the branch's content before `node`, which goes; return the moved nodes.

    Args:
        names: How many values of the scope have each name.
    """
    graph = node.graph
    assert graph is not None
    returned, moved = list(branch.outputs), list(branch)
    for body in subgraphs(node):
        if body is not branch:
            names.subtract(value.name for value in _defined(body))
    for value in _defined(branch):
        if names[value.name] > 1:
            names[value.name] -= 1
            value.name = scope.fresh(value.name or "value")
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        constant = _constant(scope, value, node)
        value.replace_all_uses_with(constant)
        returned = [constant if each is value else each for each in returned]
    for each in moved:
        branch.remove(each)
        graph.insert_before(node, each)
    for old, new in zip(node.outputs, returned, strict=True):
        if scope.can_replace(old, new) is not None:
            (new,) = scope.insert(node, "Identity", [new], name=f"{old.name}/returned")
        scope.replace(old, new)
    scope.drop_if_unused(node)
    return moved


def _constant(scope: Scope, value: ir.Value, before: ir.Node) -> ir.Value:
    """Return the data of a branch's initializer as a constant of the scope."""
    tensor, name = value.const_value, value.name or "constant"
    assert tensor is not None
    if scope.is_function:
        return scope.insert(before, "Constant", [], {"value": tensor}, name=name)[0]
    return scope.initializer(tensor, name)


def _defined(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the values that the graph, and what is nested in it, defines."""
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for body in subgraphs(node):
            yield from _defined(body)

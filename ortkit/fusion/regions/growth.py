"""Growing a region around a node: what is in front of an operand, and the pointwise epilogue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.rewrite.scope import Scope

#: Says whether a node may be a step after a value, which it reads.
IsStep: TypeAlias = Callable[[ir.Node, ir.Value], bool]


def epilogue_steps(
    scope: Scope, value: ir.Value, is_step: IsStep, is_inner: Callable[[ir.Node], bool], most: int
) -> list[list[ir.Node]]:
    """Return what follows a value step by step, each of which could be the last.

    A step is one node, the only reader of what the one before it makes. Or it is the fewest nodes
    that make one value of several readers: Mish is written so in parts.

    Args:
        scope: The graph's.
        value: What the first step reads.
        is_step: Says whether an only reader may be a step.
        is_inner: Says whether a node may be one of several, if its other operands are numbers.
        most: Nodes of all steps.
    """
    steps: list[list[ir.Node]] = []
    count = 0
    while count < most:
        node = only_reader(value)
        if node is None:
            step = next_step(scope, value, is_inner, most)
        else:
            step = [node] if is_step(node, value) else []
        count += len(step)
        if not step or count > most:
            break
        steps.append(step)
        value = step[-1].outputs[0]
    return steps


def producers_of(value: ir.Value | None, op_types: Sequence[str]) -> list[ir.Node] | None:
    """Return the nodes that make a value, in order; None if they are not there.

    Each is of the default domain, and read by the next one alone.

    Args:
        value: What the last one makes.
        op_types: The last one's first; a type that ends in `?` may be absent.
    """
    found: list[ir.Node] = []
    for op_type in op_types:
        node = None if value is None else value.producer()
        if node is None or node.domain or node.op_type != op_type.rstrip("?"):
            if op_type.endswith("?"):
                continue
            return None
        if not is_read_once(node.outputs[0]):
            return None
        found.insert(0, node)
        value = node.inputs[0]
    return found


def operand_makers(node: ir.Node, may_be: Callable[[ir.Node], bool]) -> list[ir.Node]:
    """Return the nodes in front of a node that make nothing but its operands, in order.

    The first operand of each node is followed, and both of a sum.
    """
    inside, found, pending = {node}, list[ir.Node](), list(node.inputs)
    while pending:
        value = pending.pop()
        made = None if value is None else value.producer()
        if made is None or made in inside or made.graph is not node.graph or not may_be(made):
            continue
        if made.domain or not all(_is_read_by(each, inside) for each in made.outputs):
            continue
        inside.add(made)
        found.insert(0, made)
        pending += made.inputs[: 2 if made.op_type == "Add" else 1]
    return found


def next_step(
    scope: Scope, value: ir.Value, is_inner: Callable[[ir.Node], bool], most: int
) -> list[ir.Node]:
    """Return the fewest nodes that make one value of `value`, which nothing else reads.

    Args:
        scope: The graph's.
        value: What they are made from, beside single numbers.
        is_inner: Says whether a node may be among them.
        most: How many nodes are looked at.

    Returns:
        The nodes in order; none if there are no such nodes.
    """
    made, nodes = {value: None}, dict[ir.Node, None]()
    while len(nodes) < most:
        readers = (use.node for each in made for use in each.uses())
        free = (reader for reader in readers if reader not in nodes and is_inner(reader))
        node = next((item for item in free if _reads_only(scope, item, made)), None)
        if node is None:
            return []
        nodes[node] = None
        made[node.outputs[0]] = None
        if all(_is_read_by(each, nodes) for each in made if each is not node.outputs[0]):
            return list(nodes)
    return []


def _reads_only(scope: Scope, node: ir.Node, made: Mapping[ir.Value, None]) -> bool:
    """Say whether all operands of a node are `made`, or numbers."""
    return all(
        each is None or each in made or scope.array(each, 1) is not None for each in node.inputs
    )


def _is_read_by(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Say whether nothing but `nodes` reads a value."""
    return not value.is_graph_output() and all(use.node in nodes for use in value.uses())

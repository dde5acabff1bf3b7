"""Where two models part within the bodies of control flow.

What is computed in a body is seen by giving it out. It is one more result of both branches of an
If, or one more row for each turn of a Loop or Scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cmp_to_key

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.comparison.cuts import bodies
from ortkit.comparison.node_judge import compared
from ortkit.comparison.node_runs import Failed, Part, Runner
from ortkit.comparison.reproducer import Step
from ortkit.comparison.sides import Prepared
from ortkit.graph.analysis.value_names import labels
from ortkit.graph.walk import control_bodies, subgraphs
from ortkit.operators import where
from ortkit.verify.inputs.feeds import Value

_SEEN = "/seen"
#: Ops whose bodies can give more out.
_OPEN = where(access="control") - {"SequenceMap"}  # which gives sequences


def where_inside(runner: Runner, before: Prepared, after: Prepared, step: Step) -> str:
    """Name the first node in a body that makes another value in B; empty if there is none.

    Args:
        runner: Runs the step.
        before: A.
        after: B.
        step: One that diverges.
    """
    others = {value.name for _, value in _inner(after, step)}
    inner = [(node, value) for node, value in _inner(before, step) if value.name in others]
    names = [value.name or "" for _, value in inner]
    if not names or len(set(names)) < len(names):
        return ""  # a name that several bodies have tells nothing
    found = []
    for side in (before, after):
        feeds, given = runner.give(side, step.known)
        part = side.cutter.step([step.value], given)
        _open_bodies(part.graph, frozenset(names), side.element_types, 0)
        values = runner.run_one(Part(side, part), feeds)
        if isinstance(values, Failed):
            return ""
        found.append({name.partition(_SEEN)[0]: value for name, value in values.items()})
    called = labels(before.model)
    holders = {body: node for node in called if node.attributes for body in subgraphs(node)}
    wrong = []
    for order, (node, value) in enumerate(inner):
        name = value.name or ""
        if name in found[0] and name in found[1]:
            turns = _first_turns(found[0][name], found[1][name], _loops(node, holders))
            if turns is not None:
                wrong.append((turns, order))
    if not wrong:
        return ""
    turns, order = min(wrong, key=cmp_to_key(_earlier))
    node = inner[order][0]
    said = "".join(f", turn {turn}" for turn in turns)
    return f"{called[node]} in {_index(node, holders, called)}{said}"


_Turns = tuple[int, ...]


def _first_turns(expected: Value, actual: Value, loops: int) -> _Turns | None:
    """Return the turns of the loops around a value at which it first differs; None if never.

    Args:
        expected: A's, stacked by the turns.
        actual: B's.
        loops: How many loops are around it.
    """
    if compared("", expected, actual).equal:
        return None
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return (0,) * loops
    for turns in np.ndindex(expected.shape[:loops]):
        if actual.ndim < loops or any(np.greater_equal(turns, actual.shape[:loops])):
            return turns  # B leaves a loop earlier
        if not compared("", expected[turns], actual[turns]).equal:
            return turns
    return (0,) * loops


def _earlier(one: tuple[_Turns, int], other: tuple[_Turns, int]) -> int:
    """Order by the turns of the loops around both, then by the order of the nodes."""
    depth = min(len(one[0]), len(other[0]))
    left, right = (one[0][:depth], one[1]), (other[0][:depth], other[1])
    return (left > right) - (left < right)


def _loops(node: ir.Node, holders: Mapping[ir.Graph, ir.Node]) -> int:
    """Return how many loops are around a node."""
    count = 0
    while isinstance(node.graph, ir.Graph) and node.graph in holders:
        node = holders[node.graph]
        count += node.op_type in ("Loop", "Scan")
    return count


def _index(
    node: ir.Node, holders: Mapping[ir.Graph, ir.Node], called: Mapping[ir.Node, str]
) -> str:
    """Return where a node stands: `then_branch of If(y)`."""
    assert isinstance(node.graph, ir.Graph)
    holder = holders[node.graph]
    inner = (
        attribute.name
        for attribute in holder.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH and attribute.as_graph() is node.graph
    )
    return f"{next(inner, 'a body')} of {called[holder]}"


def _inner(side: Prepared, step: Step) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield the nodes in bodies below a step, with each of their values."""
    nodes = list(side.model.graph)
    for index in side.cutter.nodes_to([step.value], set(step.known)):
        for body in control_bodies(nodes[index]):
            for node in _inside_out(body):
                yield from ((node, value) for value in node.outputs if value.name)


def _inside_out(body: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a body in order, those in bodies before the node that holds them."""
    for node in body:
        for inner in control_bodies(node):
            yield from _inside_out(inner)
        yield node


def _open_bodies(
    graph: onnx.GraphProto,
    wanted: Collection[str],
    types: Mapping[str, ir.DataType],
    depth: int,
) -> list[str]:
    """Let a graph give out wanted values of the bodies in it, and its own if it is a body.

    Returns:
        The names under which it has them.
    """
    seen: list[str] = []
    for node in list(graph.node):
        if node.domain in ("", "ai.onnx") and node.op_type in _OPEN:
            seen += _open_node(node, wanted, types, depth)
        if depth:
            for name in (name for name in node.output if name in wanted):
                copy = f"{name}{_SEEN}{depth}"
                graph.node.add(op_type="Identity", input=[name], output=[copy])
                seen.append(copy)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in seen)
    return seen


def _open_node(
    node: onnx.NodeProto, wanted: Collection[str], types: Mapping[str, ir.DataType], depth: int
) -> list[str]:
    inner = list(bodies(node))
    counts = [len(body.output) for body in inner]
    given = [_open_bodies(body, wanted, types, depth + 1) for body in inner]
    together = list(dict.fromkeys(name for names in given for name in names))
    for body, names, count in zip(inner, given, counts, strict=True):
        if node.op_type == "If":  # both branches must give as many results of the same types
            del body.output[count:]
            for name in together:
                if name not in names:
                    _add_nothing(body, name, types)
                body.output.add(name=name)
    first = min(counts, default=0) - (1 if node.op_type == "Loop" else 0)
    node.output.extend([""] * (first - len(node.output)))
    outside = [f"{name.partition(_SEEN)[0]}{_SEEN}{depth}" for name in together]
    node.output.extend(outside)
    return outside


def _add_nothing(body: onnx.GraphProto, name: str, types: Mapping[str, ir.DataType]) -> None:
    """Give a branch a value that only the other one computes."""
    dtype = types.get(name.partition(_SEEN)[0], ir.DataType.FLOAT)
    zero = onnx.TensorProto(data_type=dtype.value, dims=[0])
    body.node.add(op_type="Constant", output=[name]).attribute.append(
        onnx.helper.make_attribute("value", zero)
    )

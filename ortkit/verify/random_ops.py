"""Which outputs depend on random numbers, and so differ from run to run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.walk import nodes_below, roots
from ortkit.operators import operator


def random_outputs(model: ir.Model) -> tuple[str, ...]:
    """Return the graph outputs that depend on a node that draws random numbers."""
    affected = random_nodes(model)
    return tuple(v.name or "" for v in model.graph.outputs if v.producer() in affected)


def random_nodes(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that draw random numbers, and all whose results depend on them."""
    nodes = [node for root in roots(model) for node in nodes_below(root)]
    drawing = _drawing_functions(model)
    holders = {graph: node for node in nodes for graph in _subgraphs(node)}
    waiting = [node for node in nodes if _is_random(node) or node.op_identifier() in drawing]
    affected: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in affected:
            continue
        affected.add(node)
        waiting += [user for value in node.outputs for user, _ in value.uses()]
        if isinstance(node.graph, ir.Graph) and node.graph in holders:
            waiting.append(holders[node.graph])
    return affected


def drawn_names(model: ir.Model) -> set[str]:
    """Return the names of the values that depend on a node that draws random numbers."""
    return {value.name or "" for node in random_nodes(model) for value in node.outputs}


def draws(node: ir.Node | None) -> bool:
    """Say whether a node draws random numbers, itself or in a subgraph; functions are inlined."""
    if node is None:
        return False
    inner = (each for graph in _subgraphs(node) for each in nodes_below(graph))
    return _is_random(node) or any(map(_is_random, inner))


def drawn_otherwise(original: ir.Node, candidate: ir.Node | None) -> str:
    """Say how a candidate's node draws other numbers; empty if it does not, or nothing is known.

    Args:
        original: A node that draws.
        candidate: The node that gives the value of the same name.
    """
    if not draws(candidate):
        return "no random numbers are drawn"
    assert candidate is not None
    was, becomes = _distribution(original), _distribution(candidate)
    if was is None or becomes is None or was == becomes:
        return ""
    return f"drawn from {_described(becomes)} instead of {_described(was)}"


_Distribution = tuple[str, tuple[tuple[str, float], ...]]
#: The parameters that are attributes, with their defaults.
_PARAMETERS: dict[str, dict[str, float]] = {
    "RandomNormal": {"mean": 0.0, "scale": 1.0},
    "RandomUniform": {"low": 0.0, "high": 1.0},
    "Bernoulli": {},
    "Multinomial": {},
}


def _distribution(node: ir.Node) -> _Distribution | None:
    if node.domain:
        return None
    kind = node.op_type.removesuffix("Like")
    if kind == "Dropout":
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        array = constant_array(ratio, limit=1) if ratio is not None else np.array(0.5)
        return None if array is None else (kind, (("ratio", float(array.reshape(-1)[0])),))
    if kind not in _PARAMETERS:
        return None
    attributes = _PARAMETERS[kind].items()
    return kind, tuple(
        (name, node.attributes.get_float(name, least)) for name, least in attributes
    )


def _described(distribution: _Distribution) -> str:
    kind, numbers = distribution
    return f"{kind}({', '.join(f'{name}={number:g}' for name, number in numbers)})"


def _drawing_functions(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that draw random numbers, themselves or through others."""
    drawing: set[ir.OperatorIdentifier] = set()
    for _ in model.functions:  # as deep as calls can be nested
        before = len(drawing)
        for key, function in model.functions.items():
            if any(_is_random(n) or n.op_identifier() in drawing for n in nodes_below(function)):
                drawing.add(key)
        if len(drawing) == before:
            break
    return drawing


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _is_random(node: ir.Node) -> bool:
    info = operator(node.domain, node.op_type)
    if info is None or not info.random or info.training_input is None:
        return info is not None and info.random
    index = info.training_input
    mode = node.inputs[index] if len(node.inputs) > index else None
    if mode is None:
        return False
    array = constant_array(mode, limit=1)
    return array is None or bool(array.any())

"""A model as steps: each value that another model has too is computed from that model's values.

A step is what lies between the values that two models share. A rewrite is thus judged where it
is: no error of an earlier value comes in, and none is damped by a later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, subgraphs
from ortkit.verify.child import GIVEN
from ortkit.verify.exchange import read_values


def computed_values(model: ir.Model) -> dict[str, ir.Value]:
    """Return the tensors that nodes of the main graph compute from the model's inputs, by name."""
    depends: set[ir.Value] = {v for v in model.graph.inputs if not v.is_initializer()}
    found: dict[str, ir.Value] = {}
    for node in model.graph:
        read: Iterable[ir.Value | None] = (*node.inputs, *captured(node))
        if not any(value in depends for value in read):
            continue
        depends.update(node.outputs)
        for value in node.outputs:
            if value.name:
                found[value.name] = value
    return found


def captured(node: ir.Node) -> set[ir.Value]:
    """Return the values around a node that its subgraphs read."""
    found: set[ir.Value] = set()
    for body in subgraphs(node):
        own: set[ir.Value] = {*body.inputs, *body.initializers.values()}
        for inner in body:
            read = {value for value in inner.inputs if value is not None} | captured(inner)
            found |= read - own
            own.update(inner.outputs)
        found |= set(body.outputs) - own
    return found


def as_steps(model: ir.Model, names: Collection[str], wanted: Collection[str]) -> None:
    """Let every consumer of the values named read an input instead; some become results.

    Args:
        model: Changed in place. Its inputs stay, its results are only the values wanted.
        names: Of values that nodes of the main graph compute, whose types are known.
        wanted: Those that become results.
    """
    graph = model.graph
    chosen = read_from_inputs(model, names)
    graph.outputs[:] = [value for value in chosen if value.name in wanted]


def read_from_inputs(model: ir.Model, names: Collection[str]) -> dict[ir.Value, ir.Value]:
    """Let every consumer of the values named read an input `NAME/given` instead, in place.

    Args:
        model: Changed. Its results stay.
        names: Of values that nodes of the main graph compute, whose types are known.

    Returns:
        The input that is read instead of each value.
    """
    values = computed_values(model)
    shapes = Shapes.infer(model) if _has_loop(model) else None
    chosen = {values[name]: _given(values[name], shapes) for name in values if name in names}
    for value, given in chosen.items():
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, given)
    for node in model.graph:
        for body in subgraphs(node):
            _replace_results(body, chosen)
    model.graph.inputs.extend(chosen.values())
    return chosen


def give(model: ir.Model, names: Collection[str]) -> None:
    """Let a model give the values named, and nothing else, in place."""
    values = [value for node in model.graph for value in node.outputs]
    model.graph.outputs[:] = [value for value in values if value.name in names]


def given_names(model: ir.Model) -> list[str]:
    """Return the values that a model of steps gets as inputs."""
    inputs = (value.name or "" for value in model.graph.inputs if _is_given(value))
    return [name.removesuffix(GIVEN) for name in inputs]


def bytes_of_values(model: ir.Model, feeds: Iterable[Path]) -> dict[str, int]:
    """Return how large values are at most on some input sets, as far as shapes tell.

    Args:
        model: The model, left as it is.
        feeds: Folders of input sets.
    """
    most: dict[str, int] = {}
    for given in _largest([_shapes(each) for each in feeds]):
        known = model.clone()
        for value in known.graph.inputs:
            if shape := given.get(value.name or ""):
                value.shape = ir.Shape(shape)
        shapes = Shapes.infer(known)
        for name, value in computed_values(known).items():
            dtype, sizes = shapes.dtype(value), shapes.shape(value)
            if dtype in _UNSIZED or sizes is None or any(not isinstance(n, int) for n in sizes):
                continue
            assert dtype is not None
            count = prod(n for n in sizes if isinstance(n, int))
            most[name] = max(most.get(name, 0), count * max(dtype.bitwidth, 8) // 8)
    return most


#: Types without a number of bits.
_UNSIZED = (None, ir.DataType.STRING, ir.DataType.UNDEFINED)


def _shapes(feeds: Path) -> dict[str, tuple[int, ...]]:
    values = read_values(feeds).items()
    return {name: value.shape if isinstance(value, np.ndarray) else () for name, value in values}


def _largest(sets: Sequence[dict[str, tuple[int, ...]]]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of input sets that are in no other set at least as large."""
    found: list[dict[str, tuple[int, ...]]] = []
    for each in sorted(sets, key=lambda one: sum(map(sum, one.values())), reverse=True):
        if not any(_is_within(each, larger) for larger in found):
            found.append(each)
    return found


def _is_within(
    sizes: Mapping[str, tuple[int, ...]], larger: Mapping[str, tuple[int, ...]]
) -> bool:
    return all(
        name in larger and len(shape) == len(larger[name])
        and all(a <= b for a, b in zip(shape, larger[name], strict=True))
        for name, shape in sizes.items()
    )  # fmt: skip


def _given(value: ir.Value, shapes: Shapes | None) -> ir.Value:
    """Return the input that stands for a value, with its rank where `shapes` knows it."""
    sizes = None if shapes is None else shapes.shape(value)
    rank = None if sizes is None else ir.Shape([None] * len(sizes))
    return ir.Value(name=f"{value.name}{GIVEN}", type=value.type, shape=rank)


def _has_loop(model: ir.Model) -> bool:
    """Say whether results may be stacked by a Loop.

    If a Loop makes no trip, ONNX Runtime gives them the rank that it infers, or 1. So it has to
    infer as much from the values that are given as from the nodes that computed them.
    """
    return any(node.op_type == "Loop" and node.domain == "" for node in nodes_below(model.graph))


def _replace_results(body: ir.Graph, chosen: Mapping[ir.Value, ir.Value]) -> None:
    for index, result in enumerate(body.outputs):
        if result in chosen:
            body.outputs[index] = chosen[result]
    for node in body:
        for inner in subgraphs(node):
            _replace_results(inner, chosen)


def prune(model: ir.Model) -> None:
    """Remove what leads to no result, in place: nodes, constants, and inputs that need no feed.

    An input needs none if it is given or has a default.
    """
    graph = model.graph
    for node in reversed(list(graph)):
        if all(not value.uses() and not value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    unread = {
        value
        for value in graph.initializers.values()
        if not value.uses() and not value.is_graph_output()
    }
    graph.inputs[:] = [
        value
        for value in graph.inputs
        if value.uses() or not (_is_given(value) or value in unread)
    ]
    for value in unread:
        del graph.initializers[value.name or ""]


def _is_given(value: ir.Value) -> bool:
    return (value.name or "").endswith(GIVEN)

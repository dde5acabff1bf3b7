"""Rows of caches that an operator leaves undefined: zero in original and candidate.

A GroupQueryAttention with `sliding_window_cache`, or with a cache that is longer than what was
read so far, writes the first `min(total, capacity)` rows of `present`. What the others hold is
whatever lay in memory (ONNX Runtime 1.31.1). No two runs agree on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, roots
from ortkit.verify.inputs.caches import is_sliding

_GROUPED = ("com.microsoft", "GroupQueryAttention")
_PAST_KEYS, _LENGTHS = 3, 5
_ROWS_AXIS = 2
#: The first opset with Range.
_RANGES_FROM = 11


def leaves_rows_undefined(node: ir.Node, shapes: Shapes) -> bool:
    """Say whether a node writes a part of its caches only."""
    if not _is_grouped(node) or len(node.inputs) <= _LENGTHS:
        return False
    past = node.inputs[_PAST_KEYS]
    if past is None or node.inputs[_LENGTHS] is None or not any(_present(node)):
        return False
    if is_sliding(node):
        return True
    shape = shapes.shape(past)
    return shape is not None and len(shape) > _ROWS_AXIS and isinstance(shape[_ROWS_AXIS], int)


def zero_undefined(model: ir.Model, side: str) -> bool:
    """Let rows that no operator writes be zero, in place; say whether there are any.

    Args:
        model: An original or a candidate.
        side: Which of the two. What the operator writes itself is named by it, so that no value
            of that name is in both models.
    """
    if model.graph.opset_imports.get("", 0) < _RANGES_FROM:
        return False
    nodes = [node for root in roots(model) for node in nodes_below(root) if _is_grouped(node)]
    if not nodes:
        return False
    shapes = Shapes.infer(model)
    found = [node for node in nodes if leaves_rows_undefined(node, shapes)]
    for node in found:
        for value in filter(None, _present(node)):
            _zero_rows(node, value, side, shapes.dtype(value) or ir.DataType.FLOAT)
    return bool(found)


def _is_grouped(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == _GROUPED


def _present(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return present keys and values, None for one that nothing reads."""
    return tuple(
        value if value.name and (value.uses() or value.is_graph_output()) else None
        for value in node.outputs[1:3]
    )


def _zero_rows(node: ir.Node, value: ir.Value, side: str, dtype: ir.DataType) -> None:
    """Put `Where(row < length, value, 0)` behind a cache [batch, heads, rows, width]."""
    made: list[ir.Node] = []

    def emit(op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        new = ir.node(op, list(inputs), attributes)
        made.append(new)
        new.outputs[0].name = f"{value.name}/{side}/{len(made)}"
        return new.outputs[0]

    def constant(number: object, kind: ir.DataType) -> ir.Value:
        array = np.asarray(number, kind.numpy())
        return emit("Constant", value=ir.tensor(array, dtype=kind))

    long = ir.DataType.INT64
    last = emit("Cast", node.inputs[_LENGTHS], to=int(long))
    one, axis = constant(1, long), constant(_ROWS_AXIS, long)
    lengths = emit("Reshape", emit("Add", last, one), constant([-1, 1, 1, 1], long))
    rows = emit("Gather", emit("Shape", value), axis, axis=0)
    numbers = emit("Range", constant(0, long), rows, one)
    is_written = emit("Less", emit("Reshape", numbers, constant([1, 1, -1, 1], long)), lengths)
    result = emit("Where", is_written, value, constant(0, dtype))
    result.dtype, result.shape = value.dtype or dtype, value.shape
    name = value.name
    graph = node.graph
    assert graph is not None
    inside = set(made)
    for use in tuple(value.uses()):
        if use.node not in inside:
            use.node.replace_input_with(use.idx, result)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result
    value.name, result.name = f"{name}/{side}", name
    graph.insert_after(node, made)

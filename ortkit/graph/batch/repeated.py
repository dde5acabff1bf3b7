"""Values that are the same in each row, though they do not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.place import Rows, relocated
from ortkit.graph.constants import constant_array
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.shapes.rules import elementwise


def has_equal_rows(value: ir.Value, axis: int, shapes: Shapes) -> bool:
    """Say whether a value is the same all along an axis, by what computes it."""
    array = constant_array(value)
    if array is not None:
        return bool((array == np.take(array, [0], axis)).all())
    node, shape = value.producer(), shapes.shape(value)
    if node is None or node.domain or shape is None:
        return False
    if node.op_type == "ConstantOfShape" or shape[axis] == 1:
        return True
    if "broadcast" in node.attributes:  # before opset 7 inputs were aligned otherwise
        return False
    if node.op_type in elementwise.RULES and node.op_type != "Dropout":
        rank, given = len(shape), [each for each in node.inputs if each is not None]
        return all(_broadcast(each, axis, rank, shapes) for each in given)
    if node.op_type == "Slice" and node.inputs[0] is not None:
        return has_equal_rows(node.inputs[0], axis, shapes)
    rule = _RULES.get(node.op_type)
    data = node.inputs[0] if node.inputs else None
    if rule is None or data is None or shapes.shape(data) is None:
        return False
    return rule(node, data, axis, shapes)


def _broadcast(value: ir.Value, axis: int, rank: int, shapes: Shapes) -> bool:
    """Say whether a value that is broadcast to a number of axes is the same along one of them."""
    shape = shapes.shape(value)
    if shape is None:
        return False
    at = axis - (rank - len(shape))
    return at < 0 or shape[at] == 1 or has_equal_rows(value, at, shapes)


def _expand(node: ir.Node, data: ir.Value, axis: int, shapes: Shapes) -> bool:
    return _broadcast(data, axis, shapes.rank(node.outputs[0]) or 0, shapes)


def _transpose(node: ir.Node, data: ir.Value, axis: int, shapes: Shapes) -> bool:
    rank = shapes.rank(data) or 0
    perm = node.attributes.get_ints("perm", list(range(rank))[::-1])
    return has_equal_rows(data, perm[axis], shapes)


def _reshape(node: ir.Node, data: ir.Value, axis: int, shapes: Shapes) -> bool:
    shape, wanted = shapes.shape(data), shapes.shape(node.outputs[0])
    size = None if wanted is None else wanted[axis]
    if shape is None or wanted is None or not isinstance(size, int):
        return False
    found = relocated(wanted, Rows(axis), shape, size)
    return found is not None and found.is_plain and has_equal_rows(data, found.axis, shapes)


def _concat(node: ir.Node, data: ir.Value, axis: int, shapes: Shapes) -> bool:
    rank = shapes.rank(data) or 1
    if node.attributes.get_int("axis", 0) % rank == axis:
        return False
    return all(each is not None and has_equal_rows(each, axis, shapes) for each in node.inputs)


def _gather(node: ir.Node, data: ir.Value, axis: int, shapes: Shapes) -> bool:
    indices, rank = node.inputs[1], shapes.rank(data)
    count = None if indices is None else shapes.rank(indices)
    if indices is None or rank is None or count is None:
        return False
    at = node.attributes.get_int("axis", 0) % rank
    if at <= axis < at + count:
        return has_equal_rows(indices, axis - at, shapes)
    return has_equal_rows(data, axis if axis < at else axis - count + 1, shapes)


_Rule = Callable[[ir.Node, ir.Value, int, Shapes], bool]
_RULES: Mapping[str, _Rule] = {
    "Expand": _expand,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _reshape,
    "Squeeze": _reshape,
    "Concat": _concat,
    "Gather": _gather,
}

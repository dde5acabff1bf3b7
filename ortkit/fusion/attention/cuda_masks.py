"""What an attention's mask is made of: numbers, or a condition and what it adds where it fails."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.operators import where
from ortkit.rewrite.scope import Scope

#: Not Concat, of which only one input is followed.
_MOVES = (where(keeps_all=True) - {"Concat"}) | {"Cast"}
_COMPARES = frozenset({"Greater", "GreaterOrEqual"})
#: Longer ways back are not gone.
_FAR = 8


@dataclass(frozen=True)
class MaskSource:
    """A mask before what only repeats it.

    Args:
        value: Numbers, or a condition of bool.
        fill: What is added where the condition does not hold; None for numbers.
    """

    value: ir.Value
    fill: float | None


def mask_source(scope: Scope, mask: ir.Value) -> MaskSource:
    """Return what a mask of numbers is made of: a condition where it chooses between 0 and one."""
    mask = before_expand(scope, mask)
    node = mask.producer()
    if node is None or node.op_type != "Where" or node.domain:
        return MaskSource(mask, None)
    condition = node.inputs[0]
    kept, fill = (scope.array(value, 1) for value in node.inputs[1:3])
    if condition is None or kept is None or fill is None or kept.size != 1 or fill.size != 1:
        return MaskSource(mask, None)
    if float(kept.reshape(())) != 0.0:
        return MaskSource(mask, None)
    condition = before_expand(scope, _without_truths(scope, condition))
    # One of fewer axes than the keys' would not be repeated as the mask is.
    if not _has_keys_of(scope, condition, mask):
        return MaskSource(mask, None)
    return MaskSource(condition, float(fill.reshape(())))


def before_expand(scope: Scope, mask: ir.Value) -> ir.Value:
    """Return what a mask is repeated from along other axes than the keys'."""
    node = mask.producer()
    if node is None or node.op_type != "Expand" or node.domain or node.inputs[0] is None:
        return mask
    return node.inputs[0] if _has_keys_of(scope, node.inputs[0], mask) else mask


def _has_keys_of(scope: Scope, source: ir.Value, mask: ir.Value) -> bool:
    before, after = scope.shapes.shape(source), scope.shapes.shape(mask)
    return (
        before is not None
        and after is not None
        and 2 <= len(before) <= len(after)
        and before[-1] == after[-1]
    )


def _without_truths(scope: Scope, condition: ir.Value) -> ir.Value:
    """Return a condition without those that hold in every run, such as that a place is not < 0."""
    for _ in range(_FAR):
        node = condition.producer()
        if node is None or node.op_type != "And" or node.domain:
            break
        left, right = node.inputs
        if left is not None and right is not None and _is_true(scope, left):
            condition = right
        elif left is not None and right is not None and _is_true(scope, right):
            condition = left
        else:
            break
    return condition


def _is_true(scope: Scope, value: ir.Value) -> bool:
    """Say whether all elements are true: known to be, or a Range compared with less."""
    array = scope.array(value)
    if array is not None:
        return bool(array.all())
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in _MOVES and node.op_type != "Cast":
        return node.inputs[0] is not None and _is_true(scope, node.inputs[0])
    if node.op_type not in _COMPARES or node.inputs[0] is None:
        return False
    least, bound = _least(scope, node.inputs[0]), scope.array(node.inputs[1])
    if least is None or bound is None or not bound.size:
        return False
    highest = float(bound.max())
    return least > highest if node.op_type == "Greater" else least >= highest


def _least(scope: Scope, value: ir.Value) -> float | None:
    """Return what no element is below: a Range's first one, moved about."""
    for _ in range(_FAR):
        node = value.producer()
        if node is None or node.domain:
            return None
        if node.op_type == "Range":
            start, step = scope.array(node.inputs[0], 1), scope.array(node.inputs[2], 1)
            if start is None or step is None or float(step.reshape(())) <= 0:
                return None
            return float(start.reshape(()))
        if node.op_type not in _MOVES or node.inputs[0] is None or _narrows(node):
            return None
        value = node.inputs[0]
    return None


def _narrows(node: ir.Node) -> bool:
    """Say whether a Cast may change a number."""
    if node.op_type != "Cast":
        return False
    to = node.attributes["to"].as_int()
    return to not in (ir.DataType.INT64.value, ir.DataType.INT32.value, ir.DataType.FLOAT.value)

"""Gates: the columns of a product in two halves, one of which is multiplied by the other.

SimpleGate multiplies both. GLU, GEGLU and SwiGLU apply an activation to one of them before.
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.regions.epilogue_ops import EPILOGUE_OPS, is_own_step
from ortkit.rewrite.scope import Scope

#: Nodes behind the Split.
_LONGEST = 8
#: The opset since which the parts of a Split are an input.
_SIZES_ARE_INPUT = 13


def gate_of(scope: Scope, value: ir.Value, split: ir.Node) -> tuple[ir.Node, ...] | None:
    """Return a Split and the nodes that make one value of its halves, in order.

    The Split is the only reader of `value`, and cuts its last axis. Nothing else reads the halves
    or what is computed in between.

    Args:
        scope: The graph's.
        value: Cut into halves.
        split: Its reader.
    """
    if not _is_halving(scope, value, split):
        return None
    found: list[ir.Node] = [split]
    pending = dict.fromkeys(split.outputs)
    while len(pending) > 1 or len(found) == 1:
        readers = [use.node for half in pending for use in half.uses()]
        new = (node for node in readers if node not in found and node.graph is split.graph)
        step = next((node for node in new if _is_step(scope, node, pending)), None)
        if step is None or len(found) > _LONGEST:
            return None
        found.append(step)
        pending[step.outputs[0]] = None
        inside = set(found)
        pending = {
            value: None
            for value in pending
            if value.is_graph_output() or any(use.node not in inside for use in value.uses())
        }
    (end,) = pending
    return tuple(found) if end is found[-1].outputs[0] else None


def _is_halving(scope: Scope, value: ir.Value, split: ir.Node) -> bool:
    shape = scope.shapes.shape(value)
    if split.domain or shape is None or not shape or scope.opset() < _SIZES_ARE_INPUT:
        return False
    if split.attributes.get_int("axis", 0) not in (-1, len(shape) - 1):
        return False
    columns, sizes = shape[-1], [scope.shapes.shape(half) for half in split.outputs]
    if not isinstance(columns, int) or columns % 2 or len(sizes) != 2:
        return False
    return all(size is not None and size[-1] == columns // 2 for size in sizes)


def _is_step(scope: Scope, node: ir.Node, values: dict[ir.Value, None]) -> bool:
    """Say whether a node is pointwise and reads nothing but values and numbers."""
    if not (is_own_step(node) or (not node.domain and node.op_type in EPILOGUE_OPS)):
        return False
    if any(value.is_graph_output() for value in node.inputs if value in values):
        return False
    shapes = {scope.shapes.shape(value) for value in values}
    return scope.shapes.shape(node.outputs[0]) in shapes and all(
        value is None or value in values or scope.array(value, 1) is not None
        for value in node.inputs
    )

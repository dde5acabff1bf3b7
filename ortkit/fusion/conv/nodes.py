"""What blocks of convolution nets ask of values and nodes."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


def is_scalar(scope: Scope, value: ir.Value) -> bool:
    """Say whether a value is a constant of one element."""
    array = scope.array(value, limit=1)
    return array is not None and array.size == 1


def is_global_mean(site: Site, keepdims: int | None = 1) -> bool:
    """Say whether a node makes the means over both spatial axes, [N, C, 1, 1].

    Args:
        site: The node.
        keepdims: As the node has it, 0 for [N, C]; None for either.
    """
    if site.node.domain or site.node.op_type not in ("GlobalAveragePool", "ReduceMean"):
        return False
    x = site.input(0)
    if x is None or site.scope.shapes.rank(x) != 4:
        return False
    if site.node.op_type == "GlobalAveragePool":
        return True
    axes = site.ints("axes")
    if axes is None:
        array = site.scope.array(site.input(1), limit=4)
        axes = None if array is None else tuple(int(axis) for axis in array.flat)
    if axes is None or {axis % 4 for axis in axes} != {2, 3}:
        return False
    return keepdims is None or site.int("keepdims", 1) == keepdims

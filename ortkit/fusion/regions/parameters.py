"""The parameters of views and reductions: constants, or what can be written as such."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.reshape import reshape_target
from ortkit.operators import operator
from ortkit.rewrite.scope import Scope

#: Constants of up to this many integers are written into a body: axes, sizes, positions.
PARAMETERS = 64


def parameter_inputs(node: ir.Node) -> tuple[int, ...]:
    """Return which inputs say how, and are no data."""
    info = operator(node.domain, node.op_type)
    return () if info is None else info.parameter_inputs


def has_static_parameters(scope: Scope, node: ir.Node) -> bool:
    """Say whether a body can hold the node: its parameters are small constants, or follow."""
    if node.op_type == "RotaryEmbedding" and len(node.inputs) > 3 and node.inputs[3] is not None:
        return False
    if node.op_type == "Reshape":
        return reshape_parameter(scope, node) is not None
    for index in parameter_inputs(node):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            continue
        array = scope.array(value, PARAMETERS)
        if array is None:
            return False
        if node.op_type == "Gather" and array.ndim != 0:
            return False
        if node.op_type == "Slice" and index == 4 and not (array > 0).all():
            return False
    return True


def looks_up_rows(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node is a Gather of rows of floats at indices of run time."""
    if node.op_type != "Gather" or node.domain or has_static_parameters(scope, node):
        return False
    table, indices = node.inputs
    if table is None or indices is None or scope.is_constant(indices):
        return False
    shape, dtype = scope.shapes.shape(table), scope.shapes.dtype(table)
    if shape is None or len(shape) < 2 or dtype is None or not dtype.is_floating_point():
        return False
    return node.attributes.get_int("axis", 0) % len(shape) == 0


def reshape_parameter(scope: Scope, node: ir.Node) -> np.ndarray | None:
    """Return the constant that a Reshape in a body takes as shape, None if there is none."""
    source, target = node.inputs[0], node.outputs[0]
    before = None if source is None else scope.shapes.shape(source)
    after = scope.shapes.shape(target)
    if before is None or after is None:
        return None
    wanted = reshape_target(before, after)
    return None if wanted is None else np.array(wanted, np.int64)

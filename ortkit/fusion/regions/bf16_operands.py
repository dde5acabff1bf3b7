"""The factors of products in bfloat16 as `ortkit.precision` writes them into a graph."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.regions.access import is_read_once
from ortkit.rewrite.scope import Scope

_FLOAT, _BF16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16


@dataclass(frozen=True)
class Unpacked:
    """A packed weight and the nodes that take it apart.

    Args:
        packed: Constant, bfloat16.
        nodes: In order; each is read by the next one alone, the last by the product.
    """

    packed: ir.Value
    nodes: tuple[ir.Node, ...]


def unpacked_matrix(scope: Scope, value: ir.Value | None) -> Unpacked | None:
    """Return how the [K, N] that a product reads is unpacked; None if it is not."""
    found: list[ir.Node] = []
    for op_type in ("Slice", "Reshape", "Transpose", "Cast"):
        node = producer_of(value)
        if op_type == "Slice" and (node is None or node.op_type != "Slice"):
            continue  # there is none where the weight fills its strips
        if node is None or node.op_type != op_type or node.domain or not has_one_use(node):
            return None
        found.insert(0, node)
        value = node.inputs[0]
    is_packed = value is not None and scope.is_constant(value) and value.dtype == _BF16
    if value is None or not is_packed or not widens(scope, found[0]):
        return None
    return Unpacked(value, tuple(found))


def unpacked_filter(scope: Scope, value: ir.Value | None) -> Unpacked | None:
    """Return how the [M, C, kh, kw] that a convolution reads is unpacked; None if it is not."""
    transposed = producer_of(value)
    if (
        transposed is None
        or transposed.op_type != "Transpose"
        or transposed.domain
        or not has_one_use(transposed)
    ):
        return None
    perm = transposed.attributes.get("perm")
    shaped = producer_of(transposed.inputs[0])
    if perm is None or perm.is_ref() or tuple(perm.as_ints()) != (3, 2, 0, 1):
        return None
    if shaped is None or shaped.op_type != "Reshape" or shaped.domain or not has_one_use(shaped):
        return None
    matrix = unpacked_matrix(scope, shaped.inputs[0])
    if matrix is None:
        return None
    return Unpacked(matrix.packed, (*matrix.nodes, shaped, transposed))


def widens(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node makes float32 of bfloat16."""
    source = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    return source is not None and _casts_to(node, _FLOAT) and scope.shapes.dtype(source) == _BF16


def rounds(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node makes bfloat16 of float32."""
    source = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    return source is not None and _casts_to(node, _BF16) and scope.shapes.dtype(source) == _FLOAT


def has_one_use(node: ir.Node) -> bool:
    """Say whether one node reads the first result, and nothing else does."""
    return is_read_once(node.outputs[0])


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """Return what makes a value; None for inputs, and for no value."""
    return None if value is None else value.producer()


def _casts_to(node: ir.Node, dtype: ir.DataType) -> bool:
    to = node.attributes.get("to")
    return to is not None and not to.is_ref() and to.as_int() == int(dtype)

"""The factors of products in bfloat16 as `ortkit.precision` writes them into a graph."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.regions.access import is_read_once
from ortkit.fusion.regions.growth import producers_of
from ortkit.rewrite.scope import Scope

_FLOAT, _BF16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16
#: What unpacks the matrix of `ortkit.kernels.layouts.bf16_blocks`, the last node first: without
#: the Slice where the weight fills its strips.
UNPACKING = ("Slice?", "Reshape", "Transpose", "Cast")


@dataclass(frozen=True)
class Unpacked:
    """A packed weight and the nodes that take it apart.

    Args:
        packed: Constant, bfloat16.
        nodes: In order; each is read by the next one alone, the last by the product.
    """

    packed: ir.Value
    nodes: tuple[ir.Node, ...]


def unpacked_filter(scope: Scope, value: ir.Value | None) -> Unpacked | None:
    """Return how the [M, C, kh, kw] that a convolution reads is unpacked; None if it is not."""
    nodes = producers_of(value, ("Transpose", "Reshape", *UNPACKING))
    packed = None if nodes is None else nodes[0].inputs[0]
    if nodes is None or packed is None or not scope.is_constant(packed):
        return None
    perm = nodes[-1].attributes.get("perm")
    if perm is None or perm.is_ref() or tuple(perm.as_ints()) != (3, 2, 0, 1):
        return None
    return Unpacked(packed, tuple(nodes)) if widens(scope, nodes[0]) else None


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

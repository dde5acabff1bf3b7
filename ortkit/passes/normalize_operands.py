"""normalize-operands: one spelling for constant operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.operators import where
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

COMMUTATIVE = tuple(sorted(where(commutative=True, inputs=(2, 2))))
#: All of two operands but PRelu, whose slope is a weight.
BINARY = tuple(sorted(where(broadcasts=True, inputs=(2, 2)) - {"PRelu"}))


@dataclass(frozen=True)
class NormalizeOperands(NodePass):
    """Put the constant operand on the right, and write one number as a tensor of rank 0.

    Before:
        t = Mul([0.5], x);  y = Add(b, t)           # b: initializer
    After:
        t = Mul(x, 0.5);  y = Add(t, b)

    Skips:
        * A one-element constant of a rank above the other operand's: it adds axes.
        * Dequantized constants are not constants here, so their groups stay as they are.

    Source:
        Addition and multiplication of floats commute bit by bit (IEEE 754, but for the payload
        of a NaN); ONNX multidirectional broadcasting.
    """

    name: ClassVar[str] = "normalize-operands"
    ops: ClassVar[Sequence[str]] = BINARY

    def rewrite(self, site: Site) -> None:
        if len(site.node.inputs) != 2 or site.opset < 7:
            return
        left, right = site.node.inputs
        is_swapped = site.scope.is_constant(left) and not site.scope.is_constant(right)
        if is_swapped and site.node.op_type in COMMUTATIVE:
            if site.claim("order"):
                site.scope.set_inputs(site.node, [right, left])
            return
        for index, other in ((0, right), (1, left)):
            if self._flatten(site, index, other):
                return

    def _flatten(self, site: Site, index: int, other: ir.Value | None) -> bool:
        value = site.node.inputs[index]
        rank = site.rank(value)
        if value is None or not rank or site.scope.is_constant(other):
            return False
        array = site.array(value, 1)
        if array is None or array.size != 1:
            return False
        beside = site.rank(other)
        if beside is None or beside < rank:
            site.miss("its one-element constant may add axes")
            return False
        if site.claim("rank"):
            site.set_input(index, site.constant(array.reshape(()), f"{value.name}/scalar"))
            return True
        return False

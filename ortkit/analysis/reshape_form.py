"""How a value gets another shape by one node, so that empty tensors get it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import onnx_ir as ir

from ortkit.graph.shapes.reshape import inserted_axes, refuses_empty, reshape_target
from ortkit.graph.symbolic.dims import Size, multiply
from ortkit.rewrite.site import Site

#: From these opsets on Unsqueeze and Squeeze have their axes as an input, and Flatten any type.
_AXES_ARE_INPUTS_SINCE, _FLATTENS_ALL_SINCE = 13, 9


@dataclass(frozen=True)
class ReshapeForm:
    """One node that changes a shape.

    Args:
        op_type: Flatten, Reshape, Squeeze or Unsqueeze.
        numbers: The target, or the axes; of a Flatten its axis.
        refuses_empty: Whether ONNX Runtime may refuse empty tensors, which have such a shape.
    """

    op_type: str
    numbers: tuple[int, ...]
    refuses_empty: bool = False

    def emit(self, site: Site, value: ir.Value | None, name: str = "") -> ir.Value:
        """Write the node before that of the site.

        Args:
            site: Where.
            value: What gets the other shape.
            name: Of the constant that the node reads; empty for any.
        """
        if self.op_type == "Flatten":
            return site.op("Flatten", [value], {"axis": self.numbers[0]})
        return site.op(self.op_type, [value, site.constant(self.numbers, name)])


def reshape_form(site: Site, source: Sequence[Size], wanted: Sequence[Size]) -> ReshapeForm | None:
    """Return the node that gives a value the shape `wanted`; None if no constant says how.

    ONNX Runtime (1.31.1) refuses -1 in a target beside a size of zero. So another operator is
    taken where two sizes are symbolic and it does the same.
    """
    target = reshape_target(source, wanted)
    if target is None or not refuses_empty(source, target):
        return None if target is None else ReshapeForm("Reshape", target)
    if site.opset >= _AXES_ARE_INPUTS_SINCE:
        if axes := inserted_axes(source, wanted):
            return ReshapeForm("Unsqueeze", axes)
        if axes := inserted_axes(wanted, source):
            return ReshapeForm("Squeeze", axes)
    if len(wanted) == 2 and site.opset >= _FLATTENS_ALL_SINCE:
        for axis in range(len(source) + 1):
            if (_product(source[:axis]), _product(source[axis:])) == tuple(wanted):
                return ReshapeForm("Flatten", (axis,))
    return ReshapeForm("Reshape", target, refuses_empty=True)


def _product(sizes: Sequence[Size]) -> Size:
    found: Size = 1
    return reduce(multiply, sizes, found)

"""Reduce a whole tensor in two steps on CUDA: its rows first, then what is left of them.

The first step fuses with what makes the tensor, the second with what reads the one number. ONNX
Runtime's ReduceMax of 393,216 int64 goes through cuDNN in float64, four launches of 10 us together
(H200, 2026-11): T5 in float16 asks so, twice a layer, whether any number is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import onnx_ir as ir

from ortkit.fusion.decompose.run import Decomposition
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site

#: Elements of a row at least, and of a tensor that is worth two launches.
_ROW, _TENSOR = 64, 1 << 14
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: Axes are an input since.
_SINCE = 18


@dataclass(frozen=True)
class DecomposeFullReduction(Decomposition):
    """Write the largest or smallest number of a tensor as that of the rows' ones.

    Before:
        y = ReduceMax(x);  is_any = Cast(ReduceMax(Cast(b, INT64)), BOOL)
    After:
        y = ReduceMax(ReduceMax(x, axes=[-1], keepdims=1)), and truths in between as float32

    Skips:
        * Tensors whose sizes are not known, or that are small.
        * Integers that are no truths: one number of them is taken for a size.
    """

    name: ClassVar[str] = "decompose-full-reduction"
    ops: ClassVar[Sequence[str]] = ("ReduceMax", "ReduceMin")

    def rewrite(self, site: Site) -> None:
        x = site.input(0)
        shape = None if x is None else site.scope.shapes.shape(x)
        if x is None or shape is None or not _reduces_all(site, len(shape)):
            return
        sizes = [size for size in shape if isinstance(size, int)]
        if len(sizes) < len(shape) or prod(sizes) < _TENSOR:
            return
        count = _row_axes(sizes)
        truths = _truths(site, x)
        if (truths is None and site.dtype(x) not in _FLOATS) or not site.claim("full-reduction"):
            return
        if truths is not None:
            x = site.op("Cast", [truths], {"to": ir.DataType.FLOAT}, name=f"{x.name}/float")
        axes = tuple(range(len(sizes) - count, len(sizes)))
        name = f"{site.output.name}/rows"
        if site.opset >= _SINCE:
            inputs = [x, site.constant(axes)]
            rows = site.op(site.node.op_type, inputs, {"keepdims": 1}, name=name)
        else:
            rows = site.op(site.node.op_type, [x], {"axes": axes, "keepdims": 1}, name=name)
        if truths is None:
            site.set_input(0, rows)
            return
        attributes = {"keepdims": site.int("keepdims", 1)}
        made = site.op(site.node.op_type, [rows], attributes, name=f"{site.output.name}/float")
        for use in tuple(site.output.uses()):
            kind = {"to": ir.DataType.BOOL}
            result = site.op("Cast", [made], kind, name=f"{use.node.outputs[0].name}/of_float")
            site.replace(result, use.node.outputs[0])


def _truths(site: Site, x: ir.Value) -> ir.Value | None:
    """Return what is true or false where integers of it are reduced, and taken for that again."""
    cast = site.producer(x, "Cast")
    source = None if cast is None else cast.inputs[0]
    if source is None or site.dtype(source) != ir.DataType.BOOL or site.dtype(x) in _FLOATS:
        return None
    readers = [use.node for use in site.output.uses()]
    if site.output.is_graph_output() or not all(map(_makes_truths, readers)):
        return None
    return source


def _makes_truths(node: ir.Node) -> bool:
    return (
        node.op_type == "Cast"
        and not node.domain
        and node.attributes["to"].as_int() == ir.DataType.BOOL
        and not node.outputs[0].is_graph_output()
    )


def _reduces_all(site: Site, rank: int) -> bool:
    """Say whether all axes of a tensor are reduced."""
    axes = site.axes()
    if axes is None and site.has_axes():
        return False
    if not axes:
        return not site.int("noop_with_empty_axes", 0)
    return {axis % rank for axis in axes} == set(range(rank))


def _row_axes(sizes: Sequence[int]) -> int:
    """Return how many of the last axes are a row.

    Raises:
        RefusedError: There is one row.
    """
    for count in range(1, len(sizes)):
        if prod(sizes[-count:]) >= _ROW and prod(sizes[:-count]) > 1:
            return count
    raise RefusedError("one row")

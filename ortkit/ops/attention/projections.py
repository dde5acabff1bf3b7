"""The linear layers in front of an attention, where one op can take them in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import constant_shape
from ortkit.ops.attention.operands import Operand
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class Linear:
    """x W + b, or the columns `start` to `stop` of it."""

    x: ir.Value
    weight: ir.Value
    """[inputs, outputs]"""
    bias: ir.Value | None
    """[outputs]"""
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many columns."""
        return self.stop - self.start


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values made from one value."""

    query: Linear
    key: Linear
    value: Linear

    @property
    def parts(self) -> tuple[Linear, Linear, Linear]:
        """In the order that ops want."""
        return self.query, self.key, self.value


def find_projections(
    site: Site, query: Operand, key: Operand, value: Operand
) -> Projections | None:
    """Return the layers that make all three operands from one value, None if there are none."""
    found = [_linear(site, operand) for operand in (query, key, value)]
    if any(linear is None for linear in found):
        return None
    first, second, third = (linear for linear in found if linear is not None)
    if not first.x is second.x is third.x or site.rank(first.x) != 3:
        return None
    return Projections(first, second, third)


def packed(site: Site, projections: Projections) -> tuple[ir.Value, ir.Value]:
    """Return one weight [inputs, outputs] and one bias [outputs] for all three layers.

    Layers without a bias get zeros: ONNX Runtime 1.31.1 crashes without it.
    """
    parts = projections.parts
    weights = [_columns(site, part.weight, part) for part in parts]
    whole = _whole(projections)
    if whole is not None:
        return whole
    weight = site.constant(np.concatenate(weights, axis=1), f"{parts[0].weight.name}/packed")
    biases = [
        np.zeros(part.size, weights[0].dtype)
        if part.bias is None
        else _columns(site, part.bias, part)
        for part in parts
    ]
    return weight, site.constant(np.concatenate(biases), f"{parts[0].weight.name}/packed_bias")


def _whole(projections: Projections) -> tuple[ir.Value, ir.Value] | None:
    """Return the weight and the bias of one layer that makes all, in order."""
    first, second, third = projections.parts
    if not first.weight is second.weight is third.weight:
        return None
    if first.bias is None or not first.bias is second.bias is third.bias:
        return None
    shape = first.weight.shape
    ends = (first.start, first.stop, second.stop, third.stop)
    starts = (0, second.start, third.start, None if shape is None else shape[1])
    return (first.weight, first.bias) if ends == starts else None


def _columns(site: Site, value: ir.Value, part: Linear) -> np.ndarray:
    array = site.array(value)
    assert array is not None, "weights are constants"
    return array[..., part.start : part.stop]


def _linear(site: Site, operand: Operand) -> Linear | None:
    """Return the layer that makes an operand as it stands, or one piece of it."""
    if operand.way.count or operand.scale < 0:
        return None
    value, start, size = operand.value, 0, operand.layout.source_shape[-1]
    if not isinstance(size, int):
        return None
    if operand.piece is not None:
        if operand.piece.axis != 2:
            return None
        start = operand.piece.index * size
    else:
        split = site.producer(value, "Split")
        if split is not None:
            before = _before(site, split, value)
            if before is None or split.inputs[0] is None:
                return None
            start, value = before, split.inputs[0]
    bias: ir.Value | None = None
    adder = site.producer(value, "Add")
    if adder is not None:
        sides = [side for side in adder.inputs if site.producer(side, "MatMul") is not None]
        others = [side for side in adder.inputs if site.scope.is_constant(side)]
        if len(sides) != 1 or len(others) != 1 or sides[0] is None:
            return None
        value, bias = sides[0], others[0]
    product = site.producer(value, "MatMul")
    if product is None or product.inputs[0] is None or product.inputs[1] is None:
        return None
    x, weight = product.inputs[0], product.inputs[1]
    shape = constant_shape(site, weight)
    if shape is None or len(shape) != 2:
        return None
    if bias is not None and constant_shape(site, bias) != (shape[1],):
        return None
    return Linear(x, weight, bias, start, start + size)


def _before(site: Site, split: ir.Node, value: ir.Value) -> int | None:
    """Return where an output of a Split of the last axis starts."""
    rank = site.rank(value)
    if rank is None or Site(site.scope, split, site.pass_name).int("axis", 0) % rank != rank - 1:
        return None
    start = 0
    for output in split.outputs:
        if output is value:
            return start
        shape = site.shape(output)
        size = None if shape is None else shape[-1]
        if not isinstance(size, int):
            return None
        start += size
    return None

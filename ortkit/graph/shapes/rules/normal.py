"""Normalizations."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Call, Rule, normal_axis
from ortkit.graph.shapes.rules.elementwise import same


def layer_norm(call: Call) -> None:
    """Output 0 as input 0; the others hold one number for each normalized row."""
    same(call)
    stash = call.type_attribute("stash_type") or ir.DataType.FLOAT
    for index in range(1, call.outputs):
        call.out(index, dtype=stash)
    shape = call.shape(0)
    axis = normal_axis(call.integer("axis", -1), len(shape))
    for index in range(1, call.outputs):
        call.out(index, shape=(*shape[:axis], *(1 for _ in shape[axis:])))


def _batch_norm(call: Call) -> None:
    same(call)
    # Running statistics, in training only: one number for each channel.
    for index in range(1, call.outputs):
        source = 3 if index in (1, 3) else 4
        call.out(index, dtype=call.dtype(source), shape=call.fact(source).shape)


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": same,
    "GroupNormalization": same,
    "LayerNormalization": layer_norm,
    "RMSNormalization": same,
    "SimplifiedLayerNormalization": same,
    "LpNormalization": same,
    "MeanVarianceNormalization": same,
}

"""Biases of convolutions on CUDA: nodes of their own while regions are looked for.

ONNX Runtime adds the bias of a convolution by a kernel of its own there (its option
`fuse_conv_bias` is off), and what follows by another: 46 of the 150 launches of a MobileNetV3 in
float16, a quarter of its time (1.31.1 on an H100, 2026-11). As a node it can be a part of a
region; where it becomes none, it goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import onnx_ir as ir

from ortkit.fusion.decompose.run import Decomposition, Surroundings
from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.members import is_reshape
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

_BIAS = 2
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class DecomposeConvBias(Decomposition):
    """Give the bias of a convolution a node of its own.

    Before:
        y = Conv(x, w, b)
    After:
        y = Add(Conv(x, w), column(b))
    """

    name: ClassVar[str] = "decompose-conv-bias"
    ops: ClassVar[Sequence[str]] = ("Conv", "ConvTranspose")

    excluded: frozenset[ir.Node] = frozenset()
    """Convolutions that have kernels, biases and all."""

    @classmethod
    def of(cls, around: Surroundings) -> Self | None:
        return None if around.has_layout else cls(around.excluded)

    def rewrite(self, site: Site) -> None:
        scope, conv, product = site.scope, site.node, site.output
        bias = _bias(scope, conv)
        if conv in self.excluded or bias is None or not _pays(scope, conv):
            return
        if not site.claim("conv-bias"):
            return
        array = scope.array(bias)
        assert array is not None
        rank = len(scope.shapes.shape(product) or ())
        column = np.reshape(array, (-1, *[1] * (rank - 2)))
        shift = site.constant(column, f"{bias.name}/column")
        (biased,) = scope.insert(
            conv, "Add", [product, shift], name=f"{product.name}/product", after=True
        )
        scope.replace(product, biased, but=biased.producer())
        scope.set_inputs(conv, conv.inputs[:_BIAS])


def _bias(scope: Scope, conv: ir.Node) -> ir.Value | None:
    if len(conv.inputs) <= _BIAS or not scope.is_constant(conv.inputs[_BIAS]):
        return None
    return conv.inputs[_BIAS]


def _pays(scope: Scope, conv: ir.Node) -> bool:
    """Say whether something that can be in a region reads the result, and nothing else does."""
    value = conv.outputs[0]
    shapes = scope.shapes
    if value.is_graph_output() or shapes.shape(value) is None or shapes.dtype(value) not in _TYPES:
        return False
    readers = {use.node for use in value.uses()}
    if any(access_of(reader) is None or is_reshape(reader) for reader in readers):
        return False
    if shapes.dtype(value) == ir.DataType.FLOAT and len(readers) == 1:
        # For float32 alone it has a kernel with bias and Relu, or a sum and Relu.
        (reader,) = readers
        ends = {use.node.op_type for use in reader.outputs[0].uses()}
        return reader.op_type != "Relu" and not (reader.op_type == "Add" and ends == {"Relu"})
    return bool(readers)

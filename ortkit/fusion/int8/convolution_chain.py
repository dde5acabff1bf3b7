"""What follows an int8 convolution: a chain whose values are images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.int8.chain import Chain, End
from ortkit.fusion.int8.filters import Filters
from ortkit.fusion.int8.float_steps import quantize_with_second_result
from ortkit.fusion.int8.grids import grid_of
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.fusion.int8.steps import grow
from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.region import FusedRegion
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.scope import Scope

KIND = "int8_conv"


@dataclass
class ConvolutionChain(Chain):
    """What follows a convolution; operands come first among the region's inputs."""

    kind: str = field(default=KIND)

    @classmethod
    def of(
        cls,
        scope: Scope,
        found: IntegerProduct,
        anchor: ConvAnchor,
        excluded: Collection[ir.Node] = frozenset(),
    ) -> ConvolutionChain:
        """Return the chain of a convolution, without nodes that are `excluded`."""
        assert isinstance(found.matrix, Filters)
        filters = replace(
            found.matrix, packing=anchor.layout, has_points=anchor.has_points,
            is_planar=anchor.is_planar,
        )  # fmt: skip
        product = replace(found, matrix=filters)
        if anchor.rounds:
            product = _rounding(scope, product, excluded)
        chain = cls(scope, product, excluded, lambda _, name, data: detached_constant(data, name))
        grow(chain, quantize_with_second_result)
        return chain

    @property
    def best(self) -> End:
        """The last end in bytes; the last one if none is."""
        ends = self.ends[::-1]
        return next((end for end in ends if self._is_bytes(end)), ends[0])

    def operands(self, end: End) -> tuple[ir.Value, ...]:
        """Return what is read but for constants, x first."""
        region, _ = self.region(end)
        return tuple(value for value in region.inputs if value.const_value is None)

    def region(self, end: End) -> tuple[FusedRegion, RegionSignature]:
        """See `Chain`."""
        known = self.body.inputs
        ordered = sorted(known.items(), key=lambda item: item[1].const_value is not None)
        self.body.inputs = dict(ordered)
        found = super().region(end)
        self.body.inputs = known
        return found

    def _is_bytes(self, end: End) -> bool:
        return self.scope.shapes.dtype(end.value) == ir.DataType.UINT8


def _rounding(
    scope: Scope, product: IntegerProduct, excluded: Collection[ir.Node]
) -> IntegerProduct:
    """Return the convolution with the QuantizeLinear that makes bytes for it alone."""
    made, conv = product.x.producer(), product.nodes[0]
    if made is None or not is_op(made, "QuantizeLinear") or not is_read_once(product.x):
        return product
    given = made.inputs[0]
    grid = grid_of(scope, made.inputs[1], made.inputs[2] if len(made.inputs) > 2 else None)
    if given is None or grid is None or scope.shapes.dtype(given) != ir.DataType.FLOAT:
        return product
    widening = only_reader(product.x)
    between = () if widening is None or widening is conv else (widening,)
    nodes = (made, *between, *product.nodes)
    if any(node.graph is not conv.graph or node in excluded for node in nodes):
        return product
    # What is widened has to be widened for the convolution alone.
    if between and only_reader(between[0].outputs[0]) is not conv:
        return product
    return replace(product, nodes=nodes, given=(given, grid))

"""Means over images as blocks, which read them in NHWC."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import BodyWriter, Described
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.nodes import is_global_mean
from ortkit.fusion.int8.grids import dequantized
from ortkit.fusion.regions.access import is_read_once
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.rewrite.site import Site

ANCHOR = ImageAnchor(
    "global_mean",
    (("", "GlobalAveragePool"), ("", "ReduceMean")),
    "ortkit.fusion.conv.global_mean:GlobalMean",
    is_pixel=True,
)


class GlobalMean(BodyWriter):
    """The means over both spatial axes, of bytes in float32."""

    @staticmethod
    def find(finder: BlockFinder, node: ir.Node) -> Block | None:
        """Return the block of the means over both spatial axes."""
        source = node.inputs[0]
        if source is None or not is_global_mean(Site(finder.scope, node, PASS)):
            return None
        wide, widening = dequantized(finder.scope, source), source.producer()
        if wide is None or widening is None or not is_read_once(source):
            return Block("global_mean", (node,), (), (node,), source, node.outputs[0])
        return Block("global_mean", (node,), (), (widening, node), wide[0], node.outputs[0])

    def describe(self) -> Described:
        """Describe the means, which need no other layout."""
        block = self.block
        if len(block.nodes) == 1:
            source = self._input("x", self._nhwc(block.source))
            self._result(self._mean(source, [1, 2], keep=1), self._nhwc(block.output))
            return self._described()
        wide = dequantized(self.scope, block.convs[0].inputs[0])
        assert wide is not None
        source, writer = self._input("x", self._nhwc(block.source), "uint8"), self.writer
        numbers = writer.op("Cast", source, to=int(ir.DataType.FLOAT))
        moved = writer.op("Sub", numbers, writer.number(float(wide[1].zero)))
        scaled = writer.op("Mul", moved, writer.number(float(wide[1].scale)))
        self._result(self._mean(scaled, [1, 2], keep=1), self._nhwc(block.output), "float32")
        return self._described()

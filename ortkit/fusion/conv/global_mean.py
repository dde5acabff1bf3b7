"""Means over images as blocks, which read them in NHWC."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import BodyWriter, Described
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.nodes import is_global_mean
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.rewrite.site import Site

ANCHOR = ImageAnchor(
    "global_mean",
    (("", "GlobalAveragePool"), ("", "ReduceMean")),
    "ortkit.fusion.conv.global_mean:GlobalMean",
    is_pixel=True,
)


class GlobalMean(BodyWriter):
    """The means over both spatial axes."""

    @staticmethod
    def find(finder: BlockFinder, node: ir.Node) -> Block | None:
        """Return the block of the means over both spatial axes."""
        source = node.inputs[0]
        if source is None or not is_global_mean(Site(finder.scope, node, PASS)):
            return None
        return Block("global_mean", (node,), (), (node,), source, node.outputs[0])

    def describe(self) -> Described:
        """Describe the means, which need no other layout."""
        source = self._input("x", self._nhwc(self.block.source))
        self._result(self._mean(source, [1, 2], keep=1), self._nhwc(self.block.output))
        return self._described()

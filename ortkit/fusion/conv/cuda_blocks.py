"""Blocks of convolution nets in half precision that kernels for CUDA compute.

Poolings of other blocks' results are such, too.
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.nodes import is_global_mean
from ortkit.graph.shapes.conv_window import pool_window_of
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


class CudaBlockFinder(BlockFinder):
    """What kernels for CUDA take."""

    dtypes = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
    other_dtype = "it is not in half precision"
    most_extras = 1

    def __init__(self, scope: Scope, graph: ir.Graph, refused: frozenset[ir.Node]) -> None:
        """Look at `graph`, in which the nodes `refused` are no part of a block."""
        super().__init__(scope, graph, refused)
        self._made: set[ir.Value] = set()

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        found = super().convolution(conv)
        if found is not None:
            self._made.add(found.output)
        return found

    def pool(self, node: ir.Node) -> Block | None:
        """Return a pooling of a block's result."""
        site = Site(self.scope, node, PASS)
        source = site.input(0)
        if source is None or source not in self._made:
            return None
        if node in self.excluded or node in self.refused:
            return None
        output = node.outputs[0]
        if is_global_mean(site):
            self._made.add(output)
            return Block("global_mean", (node,), (), (node,), source, output)
        if node.op_type != "MaxPool" or node.domain or len(node.outputs) != 1:
            return None
        window = pool_window_of(self.scope.shapes, node)
        if window is None or site.int("ceil_mode", 0):
            return None
        self._made.add(output)
        return Block("max_pool", (node,), (window,), (node,), source, output)

    def refusal(self, conv: ir.Node) -> Refused | None:
        """Say why no kernel for CUDA computes a convolution; None if one may."""
        if (refused := super().refusal(conv)) is not None:
            return refused
        (_, *image), filters = (self.sizes(value) for value in conv.inputs[:2])
        if not all(isinstance(size, int) for size in (*image, *filters)):
            return Refused("its image has no fixed size")
        return None

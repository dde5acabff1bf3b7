"""Blocks around int8 convolutions, for every kind of target."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.finder import BlockFinder
from ortkit.fusion.conv.int8 import quantized_sizes
from ortkit.fusion.int8.convolution_chain import ConvolutionChain
from ortkit.fusion.int8.filters import Filters, find_convolution
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.kernels.conv_anchor import ConvAnchor


class ByteBlockFinder(BlockFinder):
    """Finds int8 convolutions; a subclass says what becomes of all others."""

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type not in ("Conv", "QLinearConv") or conv.domain:
            return None
        if conv in self.excluded or conv in self.refused:
            return None
        quantized = find_convolution(self.scope, conv)
        if isinstance(quantized, IntegerProduct):
            anchor = self.taking(quantized_sizes(self.scope, quantized), "uint8")
            if isinstance(anchor, ConvAnchor):
                return self._quantized(conv, quantized, anchor)
            quantized = anchor
        if quantized is not None:
            self.missed(conv, quantized)
            return None
        return self.other_convolution(conv)

    def other_convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution that is not of bytes."""
        return super().convolution(conv)

    def _quantized(self, conv: ir.Node, found: IntegerProduct, anchor: ConvAnchor) -> Block:
        """Return the block around an int8 convolution."""
        chain = ConvolutionChain.of(self.scope, found, anchor, self.excluded)
        end = chain.best
        source, *extras = chain.operands(end)
        assert isinstance(found.matrix, Filters)
        return Block(
            anchor.kind, (conv,), (found.matrix.window,), end.nodes, source, end.value,
            extras=tuple(extras), second=None if end.second is None else end.second.value,
            is_planar=anchor.is_planar, anchor=anchor,
        )  # fmt: skip

    def _beside(self, gates: list[Block]) -> list[Block]:
        """Return the blocks beside the gates, with what widens bytes for blocks alone."""
        blocks = super()._beside(gates)
        inside = {node for block in blocks for node in block.nodes}
        read = {value for block in blocks for value in block.operands}
        for number, block in enumerate(blocks):
            widening = [
                use.node
                for value in block.operands
                for use in value.uses()
                if not use.idx
                and use.node not in inside
                and read.isdisjoint(use.node.outputs)
                and self._widens_for(use.node, inside)
            ]
            inside.update(widening)
            nodes = (*dict.fromkeys(widening), *block.nodes)
            blocks[number] = replace(block, nodes=nodes)
        return blocks

    def _widens_for(self, node: ir.Node, inside: Collection[ir.Node]) -> bool:
        """Say whether a DequantizeLinear is read by nodes `inside` alone."""
        if not is_op(node, "DequantizeLinear") or node.graph is not self.graph:
            return False
        value = node.outputs[0]
        return not value.is_graph_output() and all(use.node in inside for use in value.uses())

"""Blocks of convolution nets that kernels for CPUs compute: in float32, or lowered to bfloat16.

Where those in float32 gain too little (`conv_cost`) ONNX Runtime's blocked layout is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.finder import BlockFinder
from ortkit.fusion.conv.int8 import quantized_sizes
from ortkit.fusion.int8.convolution_chain import ConvolutionChain
from ortkit.fusion.int8.filters import Filters, find_convolution
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.fusion.regions.bf16_operands import (
    Unpacked,
    has_one_use,
    producer_of,
    rounds,
    unpacked_filter,
    widens,
)
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.rewrite.scope import Scope


class CpuBlockFinder(BlockFinder):
    """What kernels for CPUs take."""

    dtypes = frozenset({ir.DataType.FLOAT})
    other_dtype = "it is not of float32"

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type not in ("Conv", "QLinearConv") or conv.domain:
            return None
        if conv in self.excluded or conv in self.refused or len(self.sizes(conv.inputs[0])) == 3:
            return None  # those of one dimension have a family of their own
        quantized = find_convolution(self.scope, conv)
        if isinstance(quantized, IntegerProduct):
            anchor = self.taking(quantized_sizes(self.scope, quantized), "uint8")
            if isinstance(anchor, ConvAnchor):
                return self._quantized(conv, quantized, anchor)
            quantized = anchor
        if quantized is not None:
            self.missed(conv, quantized)
            return None
        weight = unpacked_filter(self.scope, conv.inputs[1])
        if weight is not None:
            return self._lowered(conv, weight)
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
            anchor=anchor,
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

    def is_layer(self, conv: ir.Node) -> bool:
        """Say whether a convolution is a layer of constant weights with a bias."""
        return len(conv.inputs) == 3 and super().is_layer(conv)

    def narrowed(
        self, source: ir.Value, epilogue: list[ir.Node], output: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Node, ...], ir.Value]:
        """Return the ends of a convolution in float32; see `BlockFinder.narrowed`."""
        before: tuple[ir.Node, ...] = ()
        wide = source.producer()
        if wide is not None and self._is_free(wide, widens):
            before = (wide,)
            assert wide.inputs[0] is not None
            source = wide.inputs[0]
        cast = only_reader(output)
        if cast is not None and cast.graph is self.graph and rounds(self.scope, cast):
            epilogue.append(cast)
            output = cast.outputs[0]
        return source, before, output

    def _lowered(self, conv: ir.Node, weight: Unpacked) -> Block | None:
        """Return the block around a convolution in bfloat16."""
        window, wide = self.window(conv), producer_of(conv.inputs[0])
        if window is None or wide is None or not widens(self.scope, wide) or not has_one_use(wide):
            return None
        source = wide.inputs[0]
        assert source is not None
        gate, before = None, tuple[ir.Node, ...]([wide])
        cast = source.producer()
        if window.is_point and self._is_free(cast, rounds):
            # Rows of pixels are rounded as they are read.
            assert cast is not None
            assert cast.inputs[0] is not None
            source, gate, product = self.gated(cast.inputs[0])
            before = (*product, cast, wide)
        epilogue, extras, output = self.epilogue(conv)
        casts = [use.node for use in output.uses() if rounds(self.scope, use.node)]
        rounded = None
        if len(casts) == 1 and casts[0].graph is self.graph:
            epilogue.append(casts[0])
            rounded = casts[0].outputs[0]
            if is_read_once(output):
                output, rounded = rounded, None
        nodes = (*before, *weight.nodes, conv, *epilogue)
        return Block(
            "bf16_conv", (conv,), (window,), nodes, source, output, gate, extras,
            packed=weight.packed, second=rounded,
        )  # fmt: skip

    def _is_free(self, cast: ir.Node | None, casts: Callable[[Scope, ir.Node], bool]) -> bool:
        """Say whether a node widens or rounds for one reader, and is in no block."""
        if cast is None or cast.graph is not self.graph or cast in self.excluded:
            return False
        return casts(self.scope, cast) and has_one_use(cast)

    def narrow(
        self, conv: ir.Node, operands: list[ir.Value]
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """Let a convolution in bfloat16 read further operands as such."""
        before, read = list[ir.Node](), list[ir.Value]()
        if conv.op_type != "Conv":
            return before, operands
        is_lowered = unpacked_filter(self.scope, conv.inputs[1]) is not None
        for operand in operands:
            wide = operand.producer()
            if is_lowered and wide is not None and self._is_free(wide, widens):
                before.append(wide)
                read += [each for each in wide.inputs if each is not None]
            else:
                read.append(operand)
        return before, read

"""Blocks of convolution nets that kernels for CPUs compute: in float32, or lowered to bfloat16.

Where those in float32 gain too little (`conv_cost`) ONNX Runtime's blocked layout is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.conv import int8_images
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.finder import BlockFinder
from ortkit.fusion.conv.resizes import is_resize
from ortkit.fusion.int8.filters import ConvolutionChain, Filters, find_convolution
from ortkit.fusion.int8.products import IntegerProduct, dequantized, grid_of
from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.fusion.regions.bf16_operands import (
    Unpacked,
    has_one_use,
    producer_of,
    rounds,
    unpacked_filter,
    widens,
)
from ortkit.graph.shapes.conv_window import pool_window_of
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: Kinds of blocks that may read bytes.
_READ_BYTES = frozenset({"int8_conv", "max_pool"}) | int8_images.KINDS
_POOLED = (ir.DataType.FLOAT, ir.DataType.BFLOAT16)


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
            return self._quantized(conv, quantized)
        if quantized is not None:
            self.missed(conv, quantized)
            return None
        weight = unpacked_filter(self.scope, conv.inputs[1])
        if weight is not None:
            return self._lowered(conv, weight)
        return super().convolution(conv)

    def _quantized(self, conv: ir.Node, found: IntegerProduct) -> Block:
        """Return the block around an int8 convolution."""
        chain = ConvolutionChain.of(self.scope, found, self.excluded)
        end = chain.best
        source, *extras = chain.operands(end)
        self.excluded.update(end.nodes)
        assert isinstance(found.matrix, Filters)
        return Block(
            "int8_conv", (conv,), (found.matrix.window,), end.nodes, source, end.value,
            extras=tuple(extras), second=None if end.kept is None else end.kept.value,
        )  # fmt: skip

    def _beside(self, gates: list[Block]) -> list[Block]:
        """Return the blocks beside the gates, with what widens bytes for blocks alone."""
        blocks = super()._beside(gates)
        inside = {node for block in blocks for node in block.nodes}
        read = {value for block in blocks for value in block.operands}
        for number, block in enumerate(blocks):
            if block.kind not in _READ_BYTES:
                continue
            widening = [
                use.node
                for value in block.operands
                for use in value.uses()
                if use.node not in inside
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

    def pool(self, node: ir.Node) -> Block | None:
        """Return the block of a pooling, or of another operator on images of bytes."""
        return self._largest(node) or self._image_op(node)

    def _image_op(self, node: ir.Node) -> Block | None:
        """Return the block of means or products of images of bytes."""
        if node in self.refused or node in self.excluded:
            return None
        found = int8_images.find_image_op(self.scope, node)
        if isinstance(found, Refused):
            self.missed(node, found)
            return None
        if found is None or not self.excluded.isdisjoint(found.nodes):
            return None
        self.excluded.update(found.nodes)
        return int8_images.block_of(found)

    def _largest(self, node: ir.Node) -> Block | None:
        """Return the block of a MaxPool between two values of the same type."""
        if node.op_type != "MaxPool" or node.domain or node in self.refused:
            return None
        window = pool_window_of(self.scope.shapes, node)
        source, others = node.inputs[0], node.outputs[1:]
        if window is None or source is None:
            return None
        if any(value.uses() or value.is_graph_output() for value in others):
            return None
        if (bytes_ := self._pooled_bytes(node)) is not None:
            nodes = (node, *bytes_[2])
            self.excluded.update(nodes)
            return Block("max_pool", (node,), (window,), nodes, bytes_[0], bytes_[1])
        epilogue = list[ir.Node]()
        source, before, output = self.narrowed(source, epilogue, node.outputs[0])
        if bool(before) != bool(epilogue) or self.scope.shapes.dtype(output) not in _POOLED:
            return None
        nodes = (*before, node, *epilogue)
        self.excluded.update(nodes)
        return Block("max_pool", (node,), (window,), nodes, source, output)

    def resize(self, node: ir.Node) -> Block | None:
        """Return the block of a Resize with other Resizes and values that are added to it."""
        if not self._may_resize(node):
            return None
        self.excluded.add(node)
        epilogue, extras, output = self.epilogue(node)
        others = [
            other
            for extra in extras
            if (other := extra.producer()) is not None
            and is_read_once(extra)
            and self._may_resize(other)
        ]
        enlarged = [other.outputs[0] for other in others]
        plain = [extra for extra in extras if extra not in enlarged]
        images = [value for other in (node, *others) if (value := other.inputs[0]) is not None]
        if len({*images, *plain}) < len(images) + len(plain):
            others, plain = [], list(extras)  # an image that is read in two ways
            images = images[:1]
        nodes = (node, *others, *epilogue)
        self.excluded.update(nodes)
        return Block(
            "resize", (node, *others), (), nodes, images[0], output, extras=(*images[1:], *plain)
        )

    def _pooled_bytes(
        self, pool: ir.Node
    ) -> tuple[ir.Value, ir.Value, tuple[ir.Node, ...]] | None:
        """Return the bytes that a pooling reads and makes, and the node that rounds to the same.

        The largest of numbers is the one that the largest byte stands for.
        """
        result, source = pool.outputs[0], pool.inputs[0]
        if source is not None and self.scope.shapes.dtype(source) == ir.DataType.UINT8:
            return source, result, ()
        wide = dequantized(self.scope, source)
        node = None if wide is None else only_reader(result)
        if wide is None or node is None or node.graph is not self.graph:
            return None
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        if not is_op(node, "QuantizeLinear"):
            return None
        is_bytes = self.scope.shapes.dtype(node.outputs[0]) == ir.DataType.UINT8
        if not is_bytes or grid_of(self.scope, node.inputs[1], zero) != wide[1]:
            return None
        return wide[0], node.outputs[0], (node,)

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
        self.excluded.update(nodes)
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

    def _may_resize(self, node: ir.Node) -> bool:
        """Say whether a node is a Resize that has a kernel, and is in no block."""
        if node.graph is not self.graph or node in self.excluded or node in self.refused:
            return False
        return is_resize(self.scope, node)

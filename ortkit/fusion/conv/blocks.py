"""Blocks of convolution nets that kernels for CPUs compute: in float32, or lowered to bfloat16.

Where those in float32 gain too little (`conv_cost`) ONNX Runtime's blocked layout is left to it.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from ortkit.fusion.conv.block import Block, Kind
from ortkit.fusion.conv.cost import Sizes, full_cost, minimal_cost
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.resizes import is_resize
from ortkit.fusion.regions.access import is_read_once
from ortkit.fusion.regions.bf16_operands import (
    Unpacked,
    has_one_use,
    producer_of,
    rounds,
    unpacked_filter,
    widens,
)
from ortkit.graph.shapes.conv_window import Window, pool_window_of
from ortkit.refusal import Refused
from ortkit.rewrite.site import Site, describe

#: Share of bandwidth of a Transpose to NHWC.
MOST_STEM_CHANNELS = 4
_VECTOR = 16
_POOLED = (ir.DataType.FLOAT, ir.DataType.BFLOAT16)


class CpuBlockFinder(BlockFinder):
    """What kernels for CPUs take."""

    dtypes = frozenset({ir.DataType.FLOAT})
    other_dtype = "it is not of float32"

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        if conv.op_type != "Conv" or conv.domain:
            return None
        if conv in self.excluded or conv in self.refused or len(self.sizes(conv.inputs[0])) == 3:
            return None  # those of one dimension have a family of their own
        weight = unpacked_filter(self.scope, conv.inputs[1])
        if weight is not None:
            return self._lowered(conv, weight)
        kind = self._kind(conv)
        if isinstance(kind, Refused):
            outputs = (conv.outputs[0].name or "",)
            self.scope.log.miss(PASS, describe(conv), kind.reason, outputs)
            return None
        window, source = self.window(conv), conv.inputs[0]
        assert window is not None
        assert source is not None
        gate, before = None, tuple[ir.Node, ...]()
        if kind == "pointwise_conv":
            source, gate, before = self.gated(source)
        epilogue, extras, output = self.epilogue(conv)
        if kind == "depthwise_conv":
            source, before, output = self._narrowed(source, epilogue, output)
        nodes = (*before, conv, *epilogue)
        self.excluded.update(nodes)
        return Block(
            kind, (conv,), (window,), nodes, source, output, gate, extras,
            is_planar=kind == "stem_conv",
        )  # fmt: skip

    def pool(self, node: ir.Node) -> Block | None:
        """Return the block of a pooling between two values of the same type."""
        if node.op_type != "MaxPool" or node.domain or node in self.refused:
            return None
        window = pool_window_of(self.scope.shapes, node)
        source, others = node.inputs[0], node.outputs[1:]
        if window is None or source is None:
            return None
        if any(value.uses() or value.is_graph_output() for value in others):
            return None
        epilogue = list[ir.Node]()
        source, before, output = self._narrowed(source, epilogue, node.outputs[0])
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

    def is_layer(self, conv: ir.Node) -> bool:
        """Say whether a convolution is a layer of constant weights with a bias."""
        if conv in self.refused or len(conv.inputs) != 3:
            return False
        return self._kind(conv) == "pointwise_conv"

    def _narrowed(
        self, source: ir.Value, epilogue: list[ir.Node], output: ir.Value
    ) -> tuple[ir.Value, tuple[ir.Node, ...], ir.Value]:
        """Return the ends of a convolution in float32 as they lie in bfloat16, where they do.

        Args:
            source: What is convolved.
            epilogue: What follows; gets the node that rounds the result.
            output: The result.

        Returns:
            What is read, the nodes that widen it, and the result.
        """
        before: tuple[ir.Node, ...] = ()
        wide = source.producer()
        if wide is not None and self._may_widen(wide):
            before = (wide,)
            assert wide.inputs[0] is not None
            source = wide.inputs[0]
        if is_read_once(output):
            cast = next(iter(output.uses())).node
            if cast.graph is self.graph and rounds(self.scope, cast):
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
        if window.is_point and cast is not None and self._may_take(cast):
            # Rows of pixels are rounded as they are read.
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
            packed=weight.packed, rounded=rounded,
        )  # fmt: skip

    def _may_take(self, cast: ir.Node) -> bool:
        """Say whether a node rounds for one reader, and is in no block."""
        is_own = cast.graph is self.graph and cast not in self.excluded
        return is_own and rounds(self.scope, cast) and has_one_use(cast)

    def _kind(self, conv: ir.Node) -> Kind | Refused:
        """Return which kernel the convolution has, or why it has none."""
        if (refused := self.refusal(conv)) is not None:
            return refused
        channels, filters = self.sizes(conv.inputs[0])[1], self.sizes(conv.inputs[1])
        groups, window = Site(self.scope, conv, PASS).int("group", 1), self.window(conv)
        assert isinstance(channels, int)
        assert window is not None
        if groups == channels and groups > 1:
            if filters[0] != channels:
                return Refused("it has several filters for a channel")
            return "depthwise_conv"
        if groups != 1:
            return Refused("it has groups of several channels")
        if window.is_point:
            return "pointwise_conv"
        if channels <= MOST_STEM_CHANNELS:
            return "stem_conv"
        return "winograd_conv" if self._is_minimal(conv, window) else "conv"

    def _is_minimal(self, conv: ir.Node, window: Window) -> bool:
        """Say whether Winograd's kernel takes a convolution, and is the faster one."""
        given, made = self.sizes(conv.inputs[0]), self.sizes(conv.outputs[0])
        if window != Window((3, 3), (1, 1), (1, 1), window.pads):
            return False
        known = [size for shape in (given, made) for size in shape[1:] if isinstance(size, int)]
        if len(known) < 6 or 0 in known or known[0] % _VECTOR or known[3] % _VECTOR:
            return False
        batch = given[0] if isinstance(given[0], int) else 1
        sizes = Sizes((batch, *known[:3]), (batch, *known[3:]))
        return minimal_cost(sizes) < full_cost(sizes, prod(window.kernel))

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
            if is_lowered and wide is not None and self._may_widen(wide):
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

    def _may_widen(self, cast: ir.Node) -> bool:
        """Say whether a node widens for one reader, and is in no block."""
        is_own = cast.graph is self.graph and cast not in self.excluded
        return is_own and widens(self.scope, cast) and has_one_use(cast)

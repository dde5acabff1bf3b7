"""Blocks of convolution nets that kernels for CPUs compute: in float32, or lowered to bfloat16.

Where those in float32 gain too little (`conv_cost`) ONNX Runtime's blocked layout is left to it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.byte_blocks import ByteBlockFinder
from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.fusion.regions.bf16_operands import (
    Unpacked,
    has_one_use,
    producer_of,
    rounds,
    unpacked_filter,
    widens,
)
from ortkit.rewrite.scope import Scope


class CpuBlockFinder(ByteBlockFinder):
    """What kernels for CPUs take."""

    dtypes = frozenset({ir.DataType.FLOAT})
    other_dtype = "it is not of float32"

    def convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution; one that is refused leaves its reason."""
        is_along_one_axis = len(self.sizes(conv.inputs[0] if conv.inputs else None)) == 3
        # Those have a family of their own.
        return None if is_along_one_axis else super().convolution(conv)

    def other_convolution(self, conv: ir.Node) -> Block | None:
        """Return the block around a convolution in float32 or bfloat16."""
        if conv.op_type != "Conv":
            return None
        weight = unpacked_filter(self.scope, conv.inputs[1])
        if weight is not None:
            return self._lowered(conv, weight)
        return super().other_convolution(conv)

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

"""A block of a convolution net: what one kernel computes in NHWC layout."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.operators.window import Window


@dataclass(frozen=True)
class Block:
    """Nodes that become one.

    Args:
        kind: What its kernel is: the anchor's, or "expand_depthwise", "bf16_conv", "int8_conv".
        convs: One convolution, or the pooling; two for squeeze-and-excite and for a 1x1
            convolution with the depthwise one of its result; all Resizes of a sum; or the Concat.
        windows: Of each; none of a mean over an image, of Resizes and of a Concat.
        nodes: All nodes, in order; of squeeze-and-excite with the pooling.
        source: What is convolved or enlarged, or what squeeze-and-excite pools.
        output: The result; in bfloat16 if it is read as such alone.
        gate: [N, C, 1, 1], what a 1x1 convolution's source is multiplied by.
        extras: Further operands of the result's shape; after the images of further Resizes. Of a
            Concat the further images.
        is_planar: Whether the kernel reads the source as NCHW.
        pooled: Whether some squeeze-and-excite pools the result.
        parts: The blocks that it was made of, if it was made of blocks.
        packed: Of a convolution in bfloat16 its weight.
        second: The result in bfloat16, or of an int8 convolution in float32, if it is read both
            ways.
        anchor: Of the template, where that says what its kernel takes; of all images' operators.
    """

    kind: str
    convs: tuple[ir.Node, ...]
    windows: tuple[Window, ...]
    nodes: tuple[ir.Node, ...]
    source: ir.Value
    output: ir.Value
    gate: ir.Value | None = None
    extras: tuple[ir.Value, ...] = ()
    is_planar: bool = False
    pooled: bool = False
    parts: tuple[Block, ...] = ()
    packed: ir.Value | None = None
    second: ir.Value | None = None
    anchor: ConvAnchor | ImageAnchor | None = None

    @property
    def results(self) -> tuple[ir.Value, ...]:
        """The result, both ways if it is read both ways."""
        return (self.output,) if self.second is None else (self.output, self.second)

    @property
    def operands(self) -> tuple[ir.Value, ...]:
        """What it reads of other blocks or of the graph."""
        gate = () if self.gate is None else (self.gate,)
        return (self.source, *gate, *self.extras)

    @property
    def last(self) -> ir.Node:
        """Where the fused node goes."""
        return self.nodes[-1]

    @property
    def is_gate(self) -> bool:
        """Whether it reads the means over rows of its source; see `ImageAnchor`."""
        return isinstance(self.anchor, ImageAnchor) and self.anchor.is_gate

    @property
    def is_pixel(self) -> bool:
        """Whether its result is one pixel, which leaves NHWC as it is."""
        return isinstance(self.anchor, ImageAnchor) and self.anchor.is_pixel

    @property
    def alone(self) -> str:
        """What a chain of such blocks alone is called, which is none; empty if it may be one."""
        return self.anchor.alone if isinstance(self.anchor, ImageAnchor) else ""

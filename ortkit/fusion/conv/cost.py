"""What blocks of a convolution net cost one thread, by ONNX Runtime's kernels and by ours.

Rates of ONNX Runtime 1.31.1 and of `ortkit.custom_ops.tvm` on an AVX-512 server core (2026-11),
float32, ONNX Runtime's convolutions in its blocked layout. Only their ratio decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ortkit.fusion.conv import int8
from ortkit.fusion.conv.block import Block
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.graph.shapes.conv_window import Window
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.rewrite.scope import Scope

#: Sizes that are not known: the batch, and the pixels along a side.
NOMINAL_BATCH, NOMINAL_SIDE = 1, 56


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        output: An element that a convolution in bfloat16 writes.
        step: An element through one pointwise node that is no part of a convolution.
        lowered: A multiply-add of a convolution in bfloat16; ONNX Runtime computes it in float32.
    """

    output: float
    step: float
    lowered: float


RUNTIME = Rates(output=0.2, step=0.5, lowered=1 / 85)
OURS = Rates(output=0.1, step=0.2, lowered=1 / 500)
#: An element that enters or leaves NHWC.
BORDER = 0.7
#: One of bytes: ONNX Runtime changes the layout in most of the same places.
BYTES_BORDER = 0.02
#: The part of its own time that a chain must gain; one of convolutions in int8, which are as fast
#: as the processor allows on both sides and gain by what follows them.
LEAST_GAIN, LEAST_QUANTIZED_GAIN = 0.1, 0.02


@dataclass(frozen=True)
class ChainCost:
    """Nanoseconds of blocks, before and after; of a chain with its borders.

    Args:
        before: By ONNX Runtime's kernels.
        after: By ours.
        least: The part of its own time that it must gain.
    """

    before: float
    after: float
    least: float = LEAST_GAIN

    @property
    def least_in_words(self) -> str:
        """What must be gained, for a report."""
        return "a tenth" if self.least == LEAST_GAIN else f"{100 * self.least:.0f} %"

    @property
    def pays(self) -> bool:
        """Whether the chain is worth its borders and the doubt about these numbers."""
        return self.before - self.after >= self.least * self.before


def block_cost(scope: Scope, block: Block) -> ChainCost:
    """Return what one block costs one thread."""
    if isinstance(block.anchor, ImageAnchor) and block.anchor.estimate is not None:
        is_bytes = scope.shapes.dtype(block.source) == ir.DataType.UINT8
        least = LEAST_QUANTIZED_GAIN if is_bytes else LEAST_GAIN
        return ChainCost(*block.anchor.estimate(image_sizes(scope, block)), least)
    if block.kind == "int8_conv":
        elements = _elements(scope, block.output)
        return ChainCost(*int8.quantized_cost(scope, block, elements), LEAST_QUANTIZED_GAIN)
    return ChainCost(_excluded(scope, block, RUNTIME), _excluded(scope, block, OURS))


def border_cost(scope: Scope, value: ir.Value) -> float:
    """Return what it costs that a value changes its layout."""
    is_bytes = scope.shapes.dtype(value) == ir.DataType.UINT8
    return (BYTES_BORDER if is_bytes else BORDER) * _elements(scope, value)


def _excluded(scope: Scope, block: Block, rates: Rates) -> float:
    if block.parts:
        return sum(_excluded(scope, part, rates) for part in block.parts)
    outputs, taps = _elements(scope, block.output), prod(block.windows[0].kernel)
    steps = outputs * rates.step * sum(1 for node in block.nodes if _is_step(node))
    if isinstance(block.anchor, ConvAnchor) and block.anchor.estimate is not None:
        before, after = block.anchor.estimate(conv_sizes(scope, block.convs[0], block.windows[0]))
        return (before if rates is RUNTIME else after) + steps
    channels = sizes_of(scope, block.source)[1]
    return outputs * channels * taps * rates.lowered + outputs * rates.output + steps


def _is_step(node: ir.Node) -> bool:
    return node.op_type not in ("Conv", "Mul") and node.op_type not in RUNTIME_APPLIES


def _elements(scope: Scope, value: ir.Value) -> int:
    return prod(sizes_of(scope, value))


def image_sizes(scope: Scope, block: Block) -> ImageSizes:
    """Return the sizes of another operator on images as templates see them."""
    modes = (node.attributes.get("mode") for node in block.convs)
    return ImageSizes(
        _elements(scope, block.source), _elements(scope, block.output),
        prod(size for window in block.windows for size in window.kernel),
        tuple("nearest" if mode is None else mode.as_string() for mode in modes),
        len(block.nodes), sum(len(each.inputs) > 2 for each in block.convs),
    )  # fmt: skip


def conv_sizes(scope: Scope, conv: ir.Node, window: Window) -> ConvSizes:
    """Return the sizes of a convolution as templates see them."""
    values = [value for value in (*conv.inputs[:2], conv.outputs[0]) if value is not None]
    given, filters, made = ((*sizes_of(scope, value),) for value in values)
    images = [scope.shapes.shape(value) or () for value in (values[0], values[2])]
    groups = conv.attributes.get_int("group", 1)
    return ConvSizes(
        _four(given), _four(made), _four(filters), window.strides, window.dilations, window.pads,
        groups, all(isinstance(size, int) for image in images for size in image[1:]),
    )  # fmt: skip


def _four(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    first, second, third, fourth = sizes
    return first, second, third, fourth


def sizes_of(scope: Scope, value: ir.Value) -> list[int]:
    """Return a value's sizes, nominal where they are not known."""
    shape = scope.shapes.shape(value) or ()
    nominal = [NOMINAL_BATCH, NOMINAL_SIDE, NOMINAL_SIDE, NOMINAL_SIDE]
    return [s if isinstance(s, int) else n for s, n in zip(shape, nominal, strict=False)]

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
from ortkit.fusion.conv.sizes import conv_sizes, sizes_of
from ortkit.fusion.regions.cost_model import cost_model_of
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.image_anchor import ImageAnchor, ImageSizes
from ortkit.rewrite.scope import Scope

#: Nanoseconds, ONNX Runtime's and ours: an element through a pointwise node that is no part of a
#: convolution.
STEP = (0.5, 0.2)
#: Of a convolution in bfloat16, which ONNX Runtime computes in float32: an element that is
#: written, and a multiply-add.
OUTPUT, LOWERED = (0.2, 0.1), (1 / 85, 1 / 500)
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
        assert isinstance(block.anchor, ConvAnchor)
        assert block.anchor.estimate is not None
        sizes = int8.sizes_in_block(scope, block)
        return ChainCost(*block.anchor.estimate(sizes), LEAST_QUANTIZED_GAIN)
    return ChainCost(*_convolution(scope, block))


def border_cost(scope: Scope, value: ir.Value) -> float:
    """Return what it costs that a value changes its layout."""
    is_bytes = scope.shapes.dtype(value) == ir.DataType.UINT8
    return (BYTES_BORDER if is_bytes else BORDER) * _elements(scope, value)


def _convolution(scope: Scope, block: Block) -> tuple[float, float]:
    if block.parts:
        first, second = (_convolution(scope, part) for part in block.parts)
        return first[0] + second[0], first[1] + second[1]
    outputs, taps = _elements(scope, block.output), prod(block.windows[0].kernel)
    steps = sum(map(_is_step, block.nodes))
    times = [outputs * taps * sizes_of(scope, block.source)[1] * item for item in LOWERED]
    times = [time + outputs * one for time, one in zip(times, OUTPUT, strict=True)]
    if isinstance(block.anchor, ConvAnchor) and block.anchor.estimate is not None:
        predicted = block.anchor.estimate(conv_sizes(scope, block.convs[0], block.windows[0]))
        times = [*cost_model_of(scope).corrected(block.anchor.kind, predicted)]
    before, after = (time + outputs * one * steps for time, one in zip(times, STEP, strict=True))
    return before, after


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

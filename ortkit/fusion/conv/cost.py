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
from ortkit.kernels.conv_anchor import ConvSizes
from ortkit.rewrite.scope import Scope
from ortkit.targets.cpu import microarchitecture_at

#: Sizes that are not known: the batch, and the pixels along a side.
NOMINAL_BATCH, NOMINAL_SIDE = 1, 56


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        output: An element that a convolution in bfloat16 writes.
        step: An element through one pointwise node that is no part of a convolution.
        gate: An element that squeeze-and-excite pools and multiplies, with changes of layout.
        lowered: A multiply-add of a convolution in bfloat16; ONNX Runtime computes it in float32.
        tap: A number that a pooling looks at.
        linear: A pixel's channel that a linear Resize makes.
        nearest: One that a Resize repeats.
        copied: An element that a Concat moves. Measured on one thread of an AMD EPYC (Zen 4,
            2026-11-28), 20 to 128 pixels a side and 16 to 128 channels: 0.10 to 0.13 by ONNX
            Runtime in NCHW, 0.11 to 0.15 by ours in NHWC.
    """

    output: float
    step: float
    gate: float
    lowered: float
    tap: float
    linear: float
    nearest: float
    copied: float


RUNTIME = Rates(
    output=0.2, step=0.5, gate=0.5, lowered=1 / 85, tap=0.1, linear=2.0, nearest=0.5,
    copied=0.1,
)  # fmt: skip
OURS = Rates(
    output=0.1, step=0.2, gate=0.05, lowered=1 / 500, tap=0.03, linear=0.25,
    nearest=0.1, copied=0.12,
)  # fmt: skip
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
    if block.kind in int8.IMAGE_NS:
        elements = _elements(scope, block.source)
        before, after = int8.IMAGE_NS[block.kind]
        return ChainCost(before * elements, after * elements, LEAST_QUANTIZED_GAIN)
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
    if block.kind == "squeeze_excite":
        return rates.gate * _elements(scope, block.source)
    outputs = _elements(scope, block.output)
    if block.kind == "concat":
        return rates.copied * outputs
    if block.kind == "resize":
        pointwise = rates.step * (len(block.nodes) - len(block.convs))
        return outputs * (sum(_resize(node, rates) for node in block.convs) + pointwise)
    taps = prod(block.windows[0].kernel)
    if block.kind == "max_pool":
        return rates.tap * outputs * taps
    steps = outputs * rates.step * sum(1 for node in block.nodes if _is_step(node))
    if block.anchor is not None and block.anchor.estimate is not None:
        before, after = block.anchor.estimate(conv_sizes(scope, block.convs[0], block.windows[0]))
        return (before if rates is RUNTIME else after) + steps
    channels = sizes_of(scope, block.source)[1]
    return outputs * channels * taps * rates.lowered + outputs * rates.output + steps


def _resize(node: ir.Node, rates: Rates) -> float:
    mode = node.attributes.get("mode")
    return rates.linear if mode is not None and mode.as_string() == "linear" else rates.nearest


def _is_step(node: ir.Node) -> bool:
    return node.op_type not in ("Conv", "Mul") and node.op_type not in RUNTIME_APPLIES


def _elements(scope: Scope, value: ir.Value) -> int:
    return prod(sizes_of(scope, value))


def conv_sizes(scope: Scope, conv: ir.Node, window: Window) -> ConvSizes:
    """Return the sizes of a convolution as templates see them."""
    values = [value for value in (*conv.inputs[:2], conv.outputs[0]) if value is not None]
    given, filters, made = ((*sizes_of(scope, value),) for value in values)
    images = [scope.shapes.shape(value) or () for value in (values[0], values[2])]
    groups = conv.attributes.get_int("group", 1)
    return ConvSizes(
        _four(given), _four(made), _four(filters), window.strides, window.dilations, window.pads,
        groups, all(isinstance(size, int) for image in images for size in image[1:]),
        microarchitecture_at(scope.target.level) if scope.traits.is_host else "",
    )  # fmt: skip


def _four(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    first, second, third, fourth = sizes
    return first, second, third, fourth


def sizes_of(scope: Scope, value: ir.Value) -> list[int]:
    """Return a value's sizes, nominal where they are not known."""
    shape = scope.shapes.shape(value) or ()
    nominal = [NOMINAL_BATCH, NOMINAL_SIDE, NOMINAL_SIDE, NOMINAL_SIDE]
    return [s if isinstance(s, int) else n for s, n in zip(shape, nominal, strict=False)]

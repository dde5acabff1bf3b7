"""What blocks of a convolution net cost one thread, by ONNX Runtime's kernels and by ours.

Rates of ONNX Runtime 1.31.1 and of `ortkit.custom_ops.tvm` on an AVX-512 server core (2026-11),
float32, ONNX Runtime's convolutions in its blocked layout. Only their ratio decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ortkit.fusion.conv_block import Block
from ortkit.rewrite.scope import Scope

#: Sizes that are not known: the batch, and the pixels along a side.
NOMINAL_BATCH, NOMINAL_SIDE = 1, 56
#: What ONNX Runtime's blocked convolution applies itself, besides a residual sum.
APPLIED = frozenset(
    {"Add", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"}
)


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        point: A multiply-add of a 1x1 convolution.
        depthwise: One of a depthwise convolution.
        output: An element that a 1x1 convolution writes.
        step: An element through one pointwise node that is no part of a convolution.
        gate: An element that squeeze-and-excite pools and multiplies, with changes of layout.
        lowered: A multiply-add of a convolution in bfloat16; ONNX Runtime computes it in float32.
        tap: A number that a pooling looks at.
    """

    point: float
    depthwise: float
    output: float
    step: float
    gate: float
    lowered: float
    tap: float


RUNTIME = Rates(
    point=1 / 85, depthwise=1 / 33, output=0.2, step=0.5, gate=0.5, lowered=1 / 85, tap=0.1
)
OURS = Rates(
    point=1 / 95, depthwise=1 / 45, output=0.1, step=0.2, gate=0.05, lowered=1 / 500, tap=0.03
)
#: An element that enters or leaves NHWC.
BORDER = 0.7
#: The part of its own time that a chain must gain.
LEAST_GAIN = 0.1


@dataclass(frozen=True)
class ChainCost:
    """Nanoseconds of blocks, before and after; of a chain with its borders."""

    before: float
    after: float

    @property
    def pays(self) -> bool:
        """Whether the chain is worth its borders and the doubt about these numbers."""
        return self.before - self.after >= LEAST_GAIN * self.before


def block_cost(scope: Scope, block: Block) -> ChainCost:
    """Return what one block costs one thread."""
    return ChainCost(_taken(scope, block, RUNTIME), _taken(scope, block, OURS))


def border_cost(scope: Scope, value: ir.Value) -> float:
    """Return what it costs that a value changes its layout."""
    return BORDER * _elements(scope, value)


def _taken(scope: Scope, block: Block, rates: Rates) -> float:
    if block.parts:
        return sum(_taken(scope, part, rates) for part in block.parts)
    if block.kind == "squeeze_excite":
        return rates.gate * _elements(scope, block.source)
    outputs = _elements(scope, block.output)
    taps = prod(block.windows[0].kernel)
    if block.kind == "max_pool":
        return rates.tap * outputs * taps
    steps = outputs * rates.step * sum(1 for node in block.nodes if _is_step(node))
    if block.kind == "depthwise_conv":
        return outputs * taps * rates.depthwise + steps
    channels = _sizes(scope, block.source)[1]
    point = rates.lowered if block.kind == "bf16_conv" else rates.point
    return outputs * channels * taps * point + outputs * rates.output + steps


def _is_step(node: ir.Node) -> bool:
    return node.op_type not in ("Conv", "Mul") and node.op_type not in APPLIED


def _elements(scope: Scope, value: ir.Value) -> int:
    return prod(_sizes(scope, value))


def _sizes(scope: Scope, value: ir.Value) -> list[int]:
    shape = scope.shapes.shape(value) or ()
    nominal = [NOMINAL_BATCH, NOMINAL_SIDE, NOMINAL_SIDE, NOMINAL_SIDE]
    return [s if isinstance(s, int) else n for s, n in zip(shape, nominal, strict=False)]

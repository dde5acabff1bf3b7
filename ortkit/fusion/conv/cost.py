"""What blocks of a convolution net cost one thread, by ONNX Runtime's kernels and by ours.

Rates of ONNX Runtime 1.31.1 and of `ortkit.custom_ops.tvm` on an AVX-512 server core (2026-11),
float32, ONNX Runtime's convolutions in its blocked layout. Only their ratio decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.rewrite.scope import Scope

#: Sizes that are not known: the batch, and the pixels along a side.
NOMINAL_BATCH, NOMINAL_SIDE = 1, 56


@dataclass(frozen=True)
class Rates:
    """Costs in nanoseconds.

    Args:
        point: A multiply-add of a 1x1 convolution.
        full: One of a convolution with a larger filter.
        weight: A weight of such a filter, which comes from memory.
        depthwise: One of a depthwise convolution.
        output: An element that a 1x1 convolution writes.
        step: An element through one pointwise node that is no part of a convolution.
        gate: An element that squeeze-and-excite pools and multiplies, with changes of layout.
        lowered: A multiply-add of a convolution in bfloat16; ONNX Runtime computes it in float32.
        tap: A number that a pooling looks at.
        linear: A pixel's channel that a linear Resize makes.
        nearest: One that a Resize repeats.
    """

    point: float
    full: float
    weight: float
    depthwise: float
    output: float
    step: float
    gate: float
    lowered: float
    tap: float
    linear: float
    nearest: float


RUNTIME = Rates(
    point=1 / 85, full=1 / 88, weight=0.2, depthwise=1 / 33, output=0.2, step=0.5, gate=0.5,
    lowered=1 / 85, tap=0.1, linear=2.0, nearest=0.5,
)  # fmt: skip
OURS = Rates(
    point=1 / 95, full=1 / 85, weight=0.2, depthwise=1 / 45, output=0.1, step=0.2, gate=0.05,
    lowered=1 / 500, tap=0.03, linear=0.25, nearest=0.1,
)  # fmt: skip
#: Winograd's way for 3x3 filters: a multiply-add of the plain way, in whole tiles of this many
#: results a side; a channel of a tile on its way to the points or back; a weight on its way there.
_MINIMAL, _TILE, _SPREAD, _FILTER = 1 / 230, 4, 2.5, 0.45
#: Channels that are read for this many that are written, each time taken to the points.
_PANEL = 64
#: From this many channels on both sides of it a 1x1 convolution is as fast as ONNX Runtime's.
_MANY = 64
#: An element that enters or leaves NHWC.
BORDER = 0.7
#: The part of its own time that a chain must gain.
LEAST_GAIN = 0.1


@dataclass(frozen=True)
class Sizes:
    """Of what a convolution reads and makes, NCHW."""

    given: tuple[int, ...]
    made: tuple[int, ...]


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
    return ChainCost(_excluded(scope, block, RUNTIME), _excluded(scope, block, OURS))


def full_cost(sizes: Sizes, taps: int, rates: Rates = OURS) -> float:
    """Return what a convolution costs that is summed up tap by tap."""
    weights = sizes.given[1] * sizes.made[1] * taps
    batch, _, height, width = sizes.made
    return weights * (batch * height * width * rates.full + rates.weight)


def minimal_cost(sizes: Sizes) -> float:
    """Return what one with a 3x3 filter costs by Winograd's way."""
    before, after = sizes.given[1], sizes.made[1]
    batch, _, height, width = sizes.made
    tiles = batch * ceil(height / _TILE) * ceil(width / _TILE)
    spread = tiles * (before * ceil(after / _PANEL) + after) * _SPREAD
    return before * after * 9 * (tiles * _TILE**2 * _MINIMAL + _FILTER) + spread


def border_cost(scope: Scope, value: ir.Value) -> float:
    """Return what it costs that a value changes its layout."""
    return BORDER * _elements(scope, value)


def _excluded(scope: Scope, block: Block, rates: Rates) -> float:
    if block.parts:
        return sum(_excluded(scope, part, rates) for part in block.parts)
    if block.kind == "squeeze_excite":
        return rates.gate * _elements(scope, block.source)
    outputs = _elements(scope, block.output)
    if block.kind == "resize":
        pointwise = rates.step * (len(block.nodes) - len(block.convs))
        return outputs * (sum(_resize(node, rates) for node in block.convs) + pointwise)
    taps = prod(block.windows[0].kernel)
    if block.kind == "max_pool":
        return rates.tap * outputs * taps
    steps = outputs * rates.step * sum(1 for node in block.nodes if _is_step(node))
    if block.kind == "depthwise_conv":
        return outputs * taps * rates.depthwise + steps
    sizes = Sizes(tuple(_sizes(scope, block.source)), tuple(_sizes(scope, block.output)))
    if block.kind == "winograd_conv" and rates is OURS:
        return minimal_cost(sizes) + outputs * rates.output + steps
    if block.kind in ("conv", "winograd_conv"):
        return full_cost(sizes, taps, rates) + outputs * rates.output + steps
    channels = sizes.given[1]
    if min(channels, sizes.made[1]) >= _MANY:
        rates = replace(rates, point=RUNTIME.point)
    point = rates.lowered if block.kind == "bf16_conv" else rates.point
    return outputs * channels * taps * point + outputs * rates.output + steps


def _resize(node: ir.Node, rates: Rates) -> float:
    mode = node.attributes.get("mode")
    return rates.linear if mode is not None and mode.as_string() == "linear" else rates.nearest


def _is_step(node: ir.Node) -> bool:
    return node.op_type not in ("Conv", "Mul") and node.op_type not in RUNTIME_APPLIES


def _elements(scope: Scope, value: ir.Value) -> int:
    return prod(_sizes(scope, value))


def _sizes(scope: Scope, value: ir.Value) -> list[int]:
    shape = scope.shapes.shape(value) or ()
    nominal = [NOMINAL_BATCH, NOMINAL_SIDE, NOMINAL_SIDE, NOMINAL_SIDE]
    return [s if isinstance(s, int) else n for s, n in zip(shape, nominal, strict=False)]

"""What blocks of a convolution net cost on a GPU, by ONNX Runtime's kernels and by ours.

Measured on an H100 with onnxruntime-gpu 1.31.1, float16, in CUDA graphs (2026-11).
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.cost import ChainCost, image_sizes
from ortkit.fusion.conv.sizes import sizes_of
from ortkit.fusion.regions.cuda_cost_model import BANDWIDTH
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS
from ortkit.rewrite.scope import Scope

#: Multiply-adds per nanosecond that convolutions reach, and what one takes at least.
RATE, LEAST_NS = 150_000.0, 2500.0
#: The same of bytes, and of what ONNX Runtime computes instead, in TF32.
BYTE_RATE, TF32_RATE = 300_000.0, 75_000.0
#: The part of the bandwidth that a change of layout reaches.
TRANSPOSE_SHARE = 0.4


def border_cost(scope: Scope, value: ir.Value) -> float:
    """Return what it costs that a value changes its layout."""
    return LAUNCH_NS + 2 * _bytes(scope, value) / (BANDWIDTH * TRANSPOSE_SHARE)


def block_cost(scope: Scope, block: Block) -> ChainCost:
    """Return the nanoseconds of one block."""
    if block.parts:
        costs = [block_cost(scope, part) for part in block.parts]
        after = sum(cost.after for cost in costs) - LAUNCH_NS
        return ChainCost(sum(cost.before for cost in costs), after)
    if isinstance(block.anchor, ImageAnchor) and block.anchor.estimate is not None:
        return ChainCost(*block.anchor.estimate(image_sizes(scope, block)))
    moved = sum(_bytes(scope, value) for value in (*block.operands, block.output)) / BANDWIDTH
    result = _bytes(scope, block.output) / BANDWIDTH
    # A node reads and writes its result again; ONNX Runtime adds a bias as one of its own.
    steps = len(block.nodes) - 1 + sum(len(conv.inputs) > 2 for conv in block.convs)
    after = LAUNCH_NS + moved
    if block.kind == "conv":
        after = max(LEAST_NS, _products(scope, block) / RATE, after)
    first = after
    if block.kind == "int8_conv":
        after = max(LEAST_NS, _products(scope, block) / BYTE_RATE, after)
        first = LAUNCH_NS + max(_products(scope, block) / TF32_RATE, 4 * moved)
    if block.kind == "depthwise_conv":
        first = LEAST_NS + moved
    return ChainCost(first + steps * (LAUNCH_NS + 2 * result), after)


def _products(scope: Scope, block: Block) -> float:
    channels = sizes_of(scope, block.source)[1]
    taps = prod(block.windows[0].kernel)
    return float(prod(sizes_of(scope, block.output)) * channels * taps)


def _bytes(scope: Scope, value: ir.Value) -> float:
    dtype = scope.shapes.dtype(value)
    return prod(sizes_of(scope, value)) * (2 if dtype is None else dtype.itemsize)

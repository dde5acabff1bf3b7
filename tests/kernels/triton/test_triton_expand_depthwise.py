"""A 1x1 convolution and the depthwise one of its result on CUDA, interpreted."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fused_model import fused_model, session
from interpreter import Interpreter, numpy_dtype

from ortkit.fusion.conv.targets import describe_block, target_of
from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.generate import sources_of
from ortkit.operators.window import Window
from ortkit.refusal import Refused

sys.path.insert(0, str(Path(__file__).parents[2] / "fusion"))
from conv_nets import Net, half
from region_models import scope_of

SAME = {"pads": [1, 1, 1, 1]}
CASES = {
    "3x3": ((1, 24, 14, 14), 72, 3, SAME),
    "5x5, strides": ((1, 40, 28, 27), 33, 5, {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
    "images": ((3, 5, 9, 11), 37, 3, SAME),
    "several steps": ((1, 160, 7, 7), 96, 5, {"pads": [2, 2, 2, 2]}),
    "uneven pads": ((2, 8, 7, 10), 17, 3, {"strides": [2, 3], "pads": [0, 2, 3, 1]}),
    "dilations": ((1, 16, 13, 9), 40, 3, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "no pads": ((1, 3, 6, 5), 16, 3, {}),
    "more filter than image": ((1, 4, 2, 3), 20, 5, {"pads": [2, 2, 2, 2]}),
    "a row": ((1, 8, 1, 33), 17, 3, SAME),
    "pads without pixels": ((1, 8, 4, 4), 16, 3, {"strides": [3, 3], "pads": [5, 0, 0, 5]}),
}


def region(name: str, dtype: str, *, is_gated: bool, bias: bool = True) -> RegionSignature:
    shape, channels, kernel, window = CASES[name]
    net = Net()
    y = net.op("HardSwish", net.conv("x", (shape[1], channels), bias=bias))
    y = net.conv(y, (channels, channels), kernel, group=channels, bias=bias, **window)
    y = net.gate(net.silu(y), channels, 6) if is_gated else net.op("Relu", y)
    proto = half(net.model(shape, [net.conv(y, (channels, 16))]), dtype)
    scope = scope_of(ir.from_proto(proto), kind="cuda")
    graph = scope.model.graph
    first, *_ = target_of(scope).find(scope, graph, frozenset(), frozenset())
    assert first.kind == "expand_depthwise"
    assert first.pooled == is_gated
    return describe_block(scope, first).signature


def wide(signature: RegionSignature) -> RegionSignature:
    """The same region in float32: nothing in its body has a type."""
    inputs, outputs = (
        tuple(replace(spec, dtype="float32") for spec in each)
        for each in (signature.inputs, signature.outputs)
    )
    return replace(signature, inputs=inputs, outputs=outputs)


def check(signature: RegionSignature, interpreter: Interpreter) -> None:
    dtype = signature.inputs[0].dtype
    rng = np.random.default_rng(4)
    feeds = [
        (rng.standard_normal(spec.shape) / 4).astype(numpy_dtype(dtype))
        for spec in signature.inputs
    ]
    given = {
        spec.name: feed.astype(np.float32)
        for spec, feed in zip(signature.inputs, feeds, strict=True)
    }
    wanted = session(fused_model(wide(signature))).run(None, given)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert [len(source.steps) for source in sources] == [1, 1]
    epsilon = 2**-8 if dtype == "bfloat16" else 2**-11
    for variant in range(len(sources)):
        for got, want in zip(interpreter.run(signature, feeds, variant), wanted, strict=True):
            error = np.abs(got.astype(np.float32) - want).max()
            assert error <= 4 * epsilon * max(np.abs(want).max(), 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("is_gated", [False, True], ids=["", "means"])
@pytest.mark.parametrize("name", CASES)
def test_both_convolutions(
    name: str, is_gated: bool, dtype: str, interpreter: Interpreter
) -> None:
    check(region(name, dtype, is_gated=is_gated), interpreter)


def test_without_biases(interpreter: Interpreter) -> None:
    check(region("images", "float16", is_gated=True, bias=False), interpreter)


def test_bands_fit() -> None:
    from ortkit.custom_ops.triton.conv.expand_depthwise import Sizes, choose_band

    found = 0
    for images, side, depth, channels in (
        (1, 7, 160, 960), (1, 14, 112, 672), (2, 28, 40, 120), (1, 112, 16, 64), (1, 1, 8, 8),
        (1, 224, 8, 16), (1, 56, 250, 96), (8, 14, 80, 480), (64, 28, 40, 240), (1, 300, 3, 24),
    ):  # fmt: skip
        for kernel, stride, dilation in ((3, 1, 1), (5, 2, 1), (3, 1, 4), (7, 2, 1)):
            made = ceil(side / stride)
            pads = (dilation * (kernel - 1) // 2,) * 4
            window = Window((kernel,) * 2, (stride,) * 2, (dilation,) * 2, pads)
            sizes = Sizes((images, side, side), (made, made), depth, channels, window)
            band = choose_band(sizes)
            if band is None:
                assert images * side * kernel > 35
                continue
            found += 1
            reach = (band.rows - 1) * stride + (kernel - 1) * dilation + 1
            assert band.read == min(reach, side)
            assert band.pixels >= band.read * side
            assert band.elements >= band.rows * made * band.channels
            assert band.warps in (4, 8, 16)
            assert images * ceil(made / band.rows) * ceil(channels / band.channels) <= 264
            step, stages = band.steps(depth)
            kept = 2 * (band.pixels + band.channels) * step * stages
            assert kept <= min(SHARED_BYTES.values())
            assert stages == 1 or stages * step < depth + step
    assert found > 12

"""Means and products of images of bytes between int8 convolutions: ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_model import fused_model, session
from int8_models import Net

from ortkit.fusion.conv.blocks import CpuBlockFinder
from ortkit.fusion.conv.targets import describe_block
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16")
HERE = [level for level in LEVELS if cpu.runs_here(level)]
#: Lines of 64, 16 and fewer channels.
SIZES = {"few channels": (2, 3, 5, 6), "many": (1, 150, 7, 4), "whole": (3, 64, 1, 9)}

pytestmark = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")


def images(sizes: tuple[int, ...]) -> Net:
    """Return a net that is fed with images."""
    net = Net()
    net.feeds["x"] = net.random.integers(0, 256, sizes, dtype=np.uint8)
    return net


def mean(net: Net) -> onnx.ModelProto:
    """QDQ format, and the grid that the image has: sums of halves are ties."""
    wide = net.add("DequantizeLinear", ["x", "xs", "xz"], "xf")
    net.add("QuantizeLinear", [net.add("GlobalAveragePool", [wide], "m"), "xs", "xz"], "o")
    return net.model()


def flat_mean(net: Net) -> onnx.ModelProto:
    """ReduceMean, as torch writes it in front of a classifier."""
    wide = net.add("DequantizeLinear", ["x", "xs", "xz"], "xf")
    made = net.add("ReduceMean", [wide], "m", axes=[-1, 2], keepdims=1)
    net.rounded(net.add("Flatten", [made], "f"), "o", 0.011, 77)
    return net.model()


def mean_operator(net: Net) -> onnx.ModelProto:
    names = ["x", "xs", "xz", *net.grid("o", 0.005, 3)]
    net.add("QLinearGlobalAveragePool", names, "o", channels_last=0)
    return net.model()


def gate(net: Net) -> onnx.ModelProto:
    """An image by one number of each channel, which comes first."""
    batch, channels = net.feeds["x"].shape[:2]
    net.feeds["g"] = net.random.integers(0, 256, (batch, channels, 1, 1), dtype=np.uint8)
    wide = net.add("DequantizeLinear", ["x", "xs", "xz"], "xf")
    by = net.add("DequantizeLinear", ["g", *net.grid("g", 1 / 255, 0)], "gf")
    net.rounded(net.add("Mul", [by, wide], "p"), "o", 0.009, 130)
    return net.model()


def gate_operator(net: Net) -> onnx.ModelProto:
    """Powers of two as scales: every second product of two odd numbers is a tie."""
    net.held["xs"] = np.float32(0.5)
    batch, channels = net.feeds["x"].shape[:2]
    net.feeds["g"] = net.random.integers(0, 256, (batch, channels, 1, 1), dtype=np.uint8)
    names = ["x", "xs", "xz", "g", *net.grid("g", 0.0078125, 128), *net.grid("o", 0.0078125, 5)]
    net.add("QLinearMul", names, "o")
    return net.model()


def product(net: Net) -> onnx.ModelProto:
    """Two images."""
    net.feeds["g"] = net.random.integers(0, 256, net.feeds["x"].shape, dtype=np.uint8)
    names = ["x", "xs", "xz", "g", *net.grid("g", 0.03, 128), *net.grid("o", 0.021, 140)]
    net.add("QLinearMul", names, "o")
    return net.model()


KINDS: dict[str, Callable[[Net], onnx.ModelProto]] = {
    item.__name__: item for item in (mean, flat_mean, mean_operator, gate, gate_operator, product)
}


def expected(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return what ONNX Runtime's own kernels make of it."""
    made = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return made.run(None, feeds)[0]


def described(net: Net, proto: onnx.ModelProto) -> tuple[RegionSignature, dict[str, np.ndarray]]:
    """Return the signature of a model's one block, and what its kernel is fed with."""
    model = open_model(proto)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(),
        RewriteOptions(Target("cpu", HERE[-1]), 2), Whole.of(model),
    )  # fmt: skip
    (block,) = CpuBlockFinder.find(scope, model.graph)
    assert block.output.is_graph_output()
    one = describe_block(scope, block)
    fed = [net.feeds[value.name or ""].transpose(0, 2, 3, 1) for value in block.operands]
    names = [f"i{number}" for number in range(len(one.signature.inputs))]
    specs = zip(one.signature.inputs, names, strict=True)
    inputs = tuple(replace(spec, name=name) for spec, name in specs)
    held = [np.asarray(weight) for weight in one.weights]
    return replace(one.signature, inputs=inputs), dict(zip(names, [*fed, *held], strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_and_body_give_the_numbers_of_onnx_runtime(
    kind: str, size: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    net = images(SIZES[size])
    proto = KINDS[kind](net)
    wanted = expected(proto, net.feeds)
    signature, feeds = described(net, proto)
    made = build_library([signature], Target("cpu", level), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    for run in (
        session(fused_model(signature)),
        session(fused_model(signature), made.library.path),
    ):
        got = run.run(None, feeds)[0].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


def test_scales_that_leave_int32_are_left_to_onnx_runtime() -> None:
    net = images((1, 8, 3, 3))
    gate_operator(net)
    net.held["os"] = np.float32(1e-9)
    with pytest.raises(ValueError, match="not enough values"):
        described(net, net.model())

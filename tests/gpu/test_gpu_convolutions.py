"""Convolution nets in half precision on a GPU: our kernels against the CPU's float32."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortkit

sys.path.insert(0, str(Path(__file__).parents[1] / "fusion"))
from conv_nets import Net, bottlenecks, half, hard_gates, inverted_residuals, squeeze_excites

CUDA = ortkit.OptimizeOptions(target="cuda", verify=False)


def deep() -> onnx.ModelProto:
    """Convolutions whose depth several blocks share, and a pooling."""
    net = Net()
    x = net.op("Relu", net.conv("x", (3, 32), 7, strides=[2, 2], pads=[3] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.op("Relu", net.conv(x, (32, 256), 3, strides=[2, 2], pads=[1] * 4))
    for _ in range(2):
        inner = net.conv(x, (256, 256), 3, pads=[1] * 4)
        x = net.op("Relu", net.op("Add", inner, x))
    return net.model(("n", 3, 64, 64), [net.op("GlobalAveragePool", x)])


def first_layer() -> onnx.ModelProto:
    """Positions in an image that have 16 bits, as a net for 224 x 224 has them."""
    net = Net()
    x = net.silu(net.conv("x", (3, 32), 3, strides=[2, 2], pads=[1] * 4))
    x = net.silu(net.depthwise(x, 32, 3, 2))
    return net.model((2, 3, 224, 224), [net.conv(x, (32, 16))])


def boxes() -> onnx.ModelProto:
    """Boxes copied by the device, whose depth several blocks share, in front of Mish and a sum."""
    net = Net()
    x = "x"
    for _ in range(2):
        inner = net.mish(net.conv(x, (512, 512), 3, pads=[1] * 4), "softplus")
        x = net.op("Relu", net.op("Add", net.conv(inner, (512, 512), 3, pads=[1] * 4), x))
    return net.model((8, 512, 7, 7), [x])


def one_image() -> onnx.ModelProto:
    """A bottleneck whose weights leave the L2 cache first, two with a depth that blocks share."""
    net = Net()
    inner = net.op("Relu", net.conv("x", (2048, 512), 1))
    inner = net.op("Relu", net.conv(inner, (512, 512), 3, pads=[1] * 4))
    y = net.op("Relu", net.op("Add", net.conv(inner, (512, 2048), 1), "x"))
    return net.model((1, 2048, 7, 7), [y])


def wide_gates() -> onnx.ModelProto:
    """Expanding and depthwise convolutions in one launch, gates of one launch and of two."""
    net = Net()
    x = "x"
    for hidden, kernel, stride in ((24, 5, 1), (160, 3, 2)):
        wide = net.op("HardSwish", net.conv(x, (160, 640)))
        pads = [kernel // 2] * 4
        deep = net.conv(wide, (640, 640), kernel, group=640, strides=[stride] * 2, pads=pads)
        x = net.conv(net.gate(net.op("HardSwish", deep), 640, hidden), (640, 160))
    return net.model((1, 160, 13, 14), [net.op("GlobalAveragePool", net.op("Relu", x))])


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "inverted residuals": inverted_residuals,
    "squeeze-and-excite": squeeze_excites,
    "hard gates": hard_gates,
    "bottlenecks": bottlenecks,
    "deep": deep,
    "first layer": first_layer,
    "boxes": boxes,
    "one image": one_image,
    "wide gates": wide_gates,
}


@pytest.mark.parametrize("graph", [False, True], ids=["", "cuda graph"])
@pytest.mark.parametrize("name", NETS)
def test_nets(name: str, graph: bool) -> None:
    pytest.importorskip("triton")
    proto = half(NETS[name]())
    made = ortkit.optimize(proto, CUDA)
    assert {
        region.emitted_as is not None for region in made.report.regions if "conv" in region.kind
    } == {True}
    shape = [item.dim_value or 3 for item in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float16)
    with ortkit.Session(proto, "cpu") as session:
        expected = session.run({"x": x})
    with ortkit.Session(made, "cuda", kernels="require", cuda_graph=graph) as session:
        for _ in range(3):
            found = session.run({"x": x})
    for key, want in expected.items():
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(
            np.asarray(found[key], np.float64), want, rtol=0, atol=0.01 * scale
        )


def test_the_advised_layout_computes_the_same() -> None:
    proto = half(deep())
    made = ortkit.optimize(
        proto, ortkit.OptimizeOptions(target="cuda", kernels="off", verify=False)
    )
    assert made.report.provider_options == {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    x = np.random.default_rng(5).standard_normal((2, 3, 64, 64)).astype(np.float16)
    with ortkit.Session(proto, "cpu") as session:
        expected = session.run({"x": x})
    with ortkit.Session(made, "cuda") as session:
        found = session.run({"x": x})
    for key, want in expected.items():
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(
            np.asarray(found[key], np.float64), want, rtol=0, atol=0.01 * scale
        )

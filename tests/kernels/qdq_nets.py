"""Nets of int8 convolutions in QDQ format, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass
class Net:
    """Nodes in QDQ format."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, np.ndarray] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def weight(self, array: np.ndarray) -> str:
        self.held[name := f"w{len(self.held)}"] = array
        return name

    def bytes(self, value: str, scale: float, zero: int) -> str:
        """The value on a grid of uint8, and widened again."""
        grid = self.weight(np.float32(scale)), self.weight(np.uint8(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", value, *grid), *grid)

    def conv(self, x: str, shape: tuple[int, ...], *, bias: bool = True, **window: object) -> str:
        scales = self.random.uniform(0.005, 0.02, shape[0]).astype(np.float32)
        numbers = self.random.integers(-127, 128, shape).astype(np.int8)
        zeros = self.weight(np.zeros(shape[0], np.int8))
        wide = self.op(
            "DequantizeLinear", self.weight(numbers), self.weight(scales), zeros, axis=0
        )
        given = [x, wide]
        if bias:
            given.append(self.weight(self.random.standard_normal(shape[0]).astype(np.float32)))
        return self.op("Conv", *given, **window)

    def model(self, sizes: list[int | str], output: str) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "g", [value("x", 1, sizes)], [value(output, 1, None)],
            [numpy_helper.from_array(np.asarray(item), name) for name, item in self.held.items()],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def padded(net: Net, x: str, channels: int) -> str:
    """What is outside of an image is not 0."""
    inner = net.conv(net.bytes(x, 0.02, 121), (40, channels, 3, 3), pads=[1, 1, 1, 1])
    return net.bytes(inner, 0.5, 7)


def residual(net: Net, x: str, channels: int) -> str:
    x = net.bytes(net.op("Relu", x), 0.02, 0)
    inner = net.conv(x, (48, channels, 1, 1))
    inner = net.bytes(net.op("Relu", inner), 0.1, 0)
    inner = net.conv(inner, (48, 48, 3, 3), pads=[1, 1, 1, 1])
    inner = net.bytes(net.op("Relu", inner), 0.2, 0)
    inner = net.bytes(net.conv(inner, (channels, 48, 1, 1)), 0.3, 131)
    return net.bytes(net.op("Relu", net.op("Add", inner, x)), 0.4, 0)


def strided(net: Net, x: str, channels: int) -> str:
    window = {"strides": [2, 2], "dilations": [2, 1], "pads": [2, 0, 1, 2]}
    x = net.bytes(net.op("Relu", x), 0.02, 0)
    inner = net.bytes(net.op("Relu", net.conv(x, (33, channels, 3, 3), **window)), 0.2, 0)
    return net.bytes(net.conv(inner, (80, 33, 1, 1), strides=[2, 1], bias=False), 0.2, 120)


def halved(net: Net, x: str, channels: int) -> str:
    """Strides that boxes reach."""
    x = net.bytes(net.op("Relu", x), 0.02, 0)
    inner = net.conv(x, (32, channels, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    inner = net.bytes(net.op("Relu", inner), 0.2, 0)
    return net.bytes(net.conv(inner, (32, 32, 1, 1), strides=[2, 2]), 0.2, 100)


def expanded(net: Net, x: str, channels: int) -> str:
    """More channels than numbers of a window, in several steps, and nothing that is added."""
    x = net.bytes(net.op("Relu", x), 0.02, 0)
    inner = net.conv(x, (384, channels, 3, 3), pads=[1] * 4, strides=[2, 2])
    inner = net.bytes(net.op("Relu", inner), 0.2, 0)
    return net.bytes(net.conv(inner, (512, 384, 1, 1), strides=[2, 2], bias=False), 0.6, 140)


def in_float(net: Net, x: str, channels: int) -> str:
    """An activation in float32, and a result in it."""
    x = net.bytes(x, 0.02, 128)
    inner = net.op("HardSwish", net.conv(x, (40, channels, 1, 1)))
    return net.op("Sigmoid", net.conv(net.bytes(inner, 0.1, 30), (24, 40, 1, 1)))


def first(net: Net, x: str, channels: int) -> str:
    x = net.bytes(x, 0.02, 128)
    return net.bytes(net.op("Relu", net.conv(x, (24, channels, 7, 7), pads=[3] * 4)), 0.2, 0)


def first_of_two(net: Net, x: str, channels: int) -> str:
    window = {"strides": [2, 2], "pads": [3, 3, 2, 2]}
    x = net.bytes(x, 0.02, 114)
    return net.bytes(net.op("Relu", net.conv(x, (33, channels, 7, 7), **window)), 0.2, 0)


def first_of_many(net: Net, x: str, channels: int) -> str:
    """Filters of 363 numbers, which are added up in several parts."""
    window = {"strides": [4, 4], "pads": [2, 2, 2, 2]}
    x = net.bytes(x, 0.02, 114)
    return net.bytes(net.op("Relu", net.conv(x, (9, channels, 11, 11), **window)), 0.2, 0)


def pooled(net: Net, x: str, channels: int) -> str:
    """A pooling of bytes between two convolutions."""
    x = net.bytes(net.op("Relu", x), 0.02, 0)
    inner = net.bytes(net.op("Relu", net.conv(x, (48, channels, 1, 1))), 0.1, 0)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    inner = net.bytes(net.op("MaxPool", inner, **window), 0.1, 0)
    return net.bytes(net.conv(inner, (32, 48, 1, 1)), 0.2, 100)


NETS: dict[str, tuple[Callable[[Net, str, int], str], int]] = {
    "pads that are not 0": (padded, 32), "a residual block": (residual, 128),
    "more channels": (expanded, 32), "strides, dilations and odd channels": (strided, 17),
    "strides of two": (halved, 32),
    "float32 between": (in_float, 32), "a first layer": (first, 3),
    "a first layer with strides": (first_of_two, 3),
    "a first layer of many taps": (first_of_many, 3),
}  # fmt: skip

"""Small quantized convolutions, as tools write them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from int8_models import Net


@dataclass
class Convolution(Net):
    """A convolution in QDQ or QOperator format, and what follows it.

    Args:
        sizes: Images, channels, height and width.
        filters: How many, and their height and width.
        strides: Of the window.
        dilations: Of the window.
        pads: Top, left, bottom, right.
        group: Of the Conv.
        step: Zero point of the result.
    """

    sizes: tuple[int, int, int, int] = (2, 20, 7, 9)
    filters: tuple[int, int, int] = (33, 3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    group: int = 1
    middle: int = 120
    others: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count, channels = self.filters[0], self.sizes[1] // self.group
        self.columns, self.depth = count, channels * self.filters[1] * self.filters[2]
        super().__post_init__()
        random = self.random
        self.feeds["x"] = random.integers(0, 256, self.sizes, dtype=np.uint8)
        shape = count, channels, *self.filters[1:]
        self.held["w"] = random.integers(-128, 128, shape, dtype=np.int8)
        self.held |= {
            "c": random.integers(-9000, 9000, count, dtype=np.int32),
            "cs": np.asarray(self.held["xs"] * self.held["ws"], np.float32),
            "cz": np.zeros(count, np.int32),
        }

    @property
    def attributes(self) -> dict[str, object]:
        return {
            "kernel_shape": self.filters[1:], "strides": self.strides, "pads": self.pads,
            "dilations": self.dilations, "group": self.group, **self.others,
        }  # fmt: skip

    def convolved(self, x: str = "x") -> str:
        """Conv of DequantizeLinear."""
        names = [
            self.add("DequantizeLinear", [x, "xs", "xz"], "xf"),
            self.add("DequantizeLinear", ["w", "ws", "wz"], "wf", axis=0),
            self.add("DequantizeLinear", ["c", "cs", "cz"], "cf", axis=0),
        ]
        attributes = {key: value for key, value in self.attributes.items() if value is not None}
        return self.add("Conv", names, "m", **attributes)

    @property
    def result(self) -> tuple[int, ...]:
        """The sizes of the result."""
        made = [
            (size + before + after - (taps - 1) * dilation - 1) // stride + 1
            for size, before, after, taps, dilation, stride in zip(
                self.sizes[2:], self.pads[:2], self.pads[2:], self.filters[1:], self.dilations,
                self.strides, strict=True,
            )
        ]  # fmt: skip
        return self.sizes[0], self.filters[0], *made


def qdq(net: Convolution) -> onnx.ModelProto:
    """A rounded convolution."""
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    return net.model()


def qdq_relu(net: Convolution) -> onnx.ModelProto:
    """An activation that the grid makes superfluous, for which scales are merged."""
    net.rounded(net.add("Relu", [net.convolved()], "p"), "y", net.reach, 0)
    return net.model()


def qdq_residual(net: Convolution) -> onnx.ModelProto:
    """A sum of two rounded values, rounded again."""
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    net.feeds["rq"] = net.random.integers(0, 256, net.result, dtype=np.uint8)
    net.grid("r", 0.7 * net.reach, 100)
    total = net.add("Add", [net.again("r"), net.again("y")], "v")
    net.rounded(total, "o", 1.3 * net.reach, 128)
    return net.model()


def qdq_gate(net: Convolution) -> onnx.ModelProto:
    """A product of two rounded values, rounded again, for which scales are merged."""
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    net.feeds["rq"] = net.random.integers(0, 256, net.result, dtype=np.uint8)
    net.grid("r", 0.7, 100)
    total = net.add("Mul", [net.again("y"), net.again("r")], "v")
    net.rounded(total, "o", 1.3 * net.reach, 128)
    return net.model()


def qdq_float_bias(net: Convolution) -> onnx.ModelProto:
    """A bias in float32, between the numbers that its sums have."""
    scales = np.broadcast_to(net.held.pop("cs"), net.columns)
    whole = net.held.pop("c") + net.random.uniform(-0.5, 0.5, net.columns)
    net.held["cf"] = np.asarray(whole * scales, np.float32)
    net.held.pop("cz")
    value = net.convolved()
    del net.nodes[2]
    net.rounded(value, "y", 0.05 * net.reach, net.middle)
    return net.model()


def qdq_silu(net: Convolution) -> onnx.ModelProto:
    """A SiLU in five operators on bytes, which are one table."""
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    net.rounded(net.add("Sigmoid", [net.again("y")], "s"), "g", 1 / 255, 0)
    wide = net.add("DequantizeLinear", ["yq", "ys", "yz"], "yw")
    net.rounded(net.add("Mul", [wide, net.again("g")], "p"), "o", 0.6 * net.reach, 9)
    return net.model()


def qdq_padded(net: Convolution) -> onnx.ModelProto:
    """A Pad of zeros between two roundings to one grid, which the window takes."""
    net.held["around"] = np.array([0, 0, 1, 0, 0, 0, 2, 1], np.int64)
    net.held |= {"n": np.uint8(7), "ns": np.float32(0.1), "nz": np.uint8(7)}
    nothing = net.add("DequantizeLinear", ["n", "ns", "nz"], "nf")
    wide = net.add("DequantizeLinear", ["x", "xs", "xz"], "xw")
    padded = net.add("Pad", [wide, "around", nothing], "xp")
    net.add("QuantizeLinear", [padded, "xs", "xz"], "xq")
    net.rounded(net.convolved("xq"), "y", net.reach, net.middle)
    return net.model()


def operator(net: Convolution) -> onnx.ModelProto:
    """QLinearConv."""
    grid = net.grid("y", net.reach, net.middle)
    names = ["x", "xs", "xz", "w", "ws", "wz", *grid, "c"]
    net.add("QLinearConv", names, "yq", **net.attributes)
    return net.model()


KINDS = {
    item.__name__: item for item in (qdq, qdq_relu, qdq_residual, qdq_silu, qdq_padded, operator)
}

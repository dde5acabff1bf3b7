"""Small convolution nets with seeded weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str


@dataclass
class Net:
    """A net in the making; methods take and return names of values."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [name], name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        self.nodes.append(node)
        return name

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int = 1,
        *,
        bias: bool = True,
        **attributes: object,
    ) -> str:
        before, after = channels
        groups = attributes.get("group", 1)
        assert isinstance(groups, int)
        shape = (after, before // groups, kernel, kernel)
        scale = 1 / np.sqrt(shape[1] * kernel * kernel)
        inputs = [x, self.weight((self.rng.standard_normal(shape) * scale).astype(np.float32))]
        if bias:
            inputs.append(self.weight(self.rng.standard_normal(after).astype(np.float32)))
        return self.op("Conv", *inputs, **attributes)

    def relu6(self, x: str) -> str:
        low, high = (self.weight(np.array(limit, np.float32)) for limit in (0, 6))
        return self.op("Clip", x, low, high)

    def silu(self, x: str) -> str:
        return self.op("QuickGelu", x, domain="com.microsoft", alpha=1.0)

    def number(self, value: float) -> str:
        return self.weight(np.array(value, np.float32))

    def mish(self, x: str, form: str) -> str:
        """x tanh(log(1 + exp x)) as an op, as exporters write it, or as it is fast on a CPU."""
        if form == "op":
            return self.op("Mish", x)
        if form == "softplus":
            return self.op("Mul", x, self.op("Tanh", self.op("Softplus", x)))
        power, two = self.op("Exp", self.op("Min", x, self.number(20))), self.number(2)
        above = self.op("Mul", power, self.op("Add", power, two))
        return self.op("Mul", x, self.op("Div", above, self.op("Add", above, two)))

    def depthwise(self, x: str, channels: int, kernel: int = 3, stride: int = 1) -> str:
        pad = kernel // 2
        return self.conv(
            x, (channels, channels), kernel, group=channels, strides=[stride, stride],
            pads=[pad] * 4,
        )  # fmt: skip

    def gate(self, x: str, channels: int, hidden: int, *, pool: str = "GlobalAveragePool") -> str:
        """Squeeze-and-excite: x times its gate."""
        if pool == "ReduceMean":
            mean = self.op("ReduceMean", x, axes=[-1, -2], keepdims=1)
        else:
            mean = self.op(pool, x)
        inner = self.silu(self.conv(mean, (channels, hidden)))
        outer = self.op("Sigmoid", self.conv(inner, (hidden, channels)))
        return self.op("Mul", x, outer)

    def model(self, x: Sequence[Dim], outputs: Sequence[str]) -> onnx.ModelProto:
        """The net from `x` on, [N, C, H, W]."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)
                for name in outputs
            ],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def inverted_residuals(x: Sequence[Dim] = (1, 3, 32, 32)) -> onnx.ModelProto:
    """MobileNetV2's blocks: expand, depthwise, project, and a sum where the shape is kept."""
    net = Net()
    value = net.relu6(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]))
    for before, after, stride in ((16, 24, 2), (24, 24, 1), (24, 24, 1)):
        wide = net.relu6(net.conv(value, (before, 6 * before)))
        deep = net.relu6(net.depthwise(wide, 6 * before, 3, stride))
        narrow = net.conv(deep, (6 * before, after))
        value = net.op("Add", narrow, value) if stride == 1 else narrow
    return net.model(x, [value])


def squeeze_excites(
    x: Sequence[Dim] = (1, 3, 32, 32), pool: str = "GlobalAveragePool"
) -> onnx.ModelProto:
    """EfficientNet's blocks, with a filter of 5 and odd channels in the last."""
    net = Net()
    value = net.silu(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]))
    for before, after, kernel in ((16, 24, 3), (24, 24, 3), (24, 21, 5)):
        wide = net.silu(net.conv(value, (before, 4 * before)))
        deep = net.silu(net.depthwise(wide, 4 * before, kernel))
        narrow = net.conv(net.gate(deep, 4 * before, 6, pool=pool), (4 * before, after))
        value = net.op("Add", value, narrow) if before == after else narrow
    return net.model(x, [value])


def mishes(form: str, x: Sequence[Dim] = (1, 3, 32, 32)) -> onnx.ModelProto:
    """Separable convolutions with Mish behind each, in one of its forms."""
    net = Net(opset=18)
    value = net.mish(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]), form)
    for _ in range(3):
        deep = net.mish(net.depthwise(value, 16, 5), form)
        value = net.op("Add", net.mish(net.conv(deep, (16, 16)), form), value)
    return net.model(x, [value])


def hard_gates(x: Sequence[Dim] = (1, 3, 64, 64), *, apart: bool = False) -> onnx.ModelProto:
    """MobileNetV3's blocks: HardSwish, and gates of Relu and HardSigmoid.

    Args:
        x: The shape of the input.
        apart: HardSwish as two nodes, as it is below opset 14.
    """
    net = Net()

    def swish(value: str) -> str:
        if not apart:
            return net.op("HardSwish", value)
        return net.op("Mul", value, net.op("HardSigmoid", value, alpha=1 / 6))

    value = swish(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]))
    for _ in range(2):
        wide = swish(net.conv(value, (16, 72)))
        deep = swish(net.depthwise(wide, 72, 5))
        inner = net.op("Relu", net.conv(net.op("GlobalAveragePool", deep), (72, 24)))
        gate = net.op("HardSigmoid", net.conv(inner, (24, 72)), alpha=1 / 6)
        value = net.op("Add", net.conv(net.op("Mul", gate, deep), (72, 16)), value)
    return net.model(x, [value])


def residuals(x: Sequence[Dim] = (1, 3, 64, 64)) -> onnx.ModelProto:
    """ResNet18's blocks behind its pooling, the second one strided."""
    net = Net()
    value = net.op("Relu", net.conv("x", (3, 32), 7, strides=[2, 2], pads=[3] * 4))
    value = net.op("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for before, after, stride in ((32, 32, 1), (32, 64, 2)):
        strides = [stride, stride]
        inner = net.op("Relu", net.conv(value, (before, after), 3, strides=strides, pads=[1] * 4))
        outer = net.conv(inner, (after, after), 3, pads=[1] * 4)
        if stride > 1:
            value = net.conv(value, (before, after), strides=strides)
        value = net.op("Relu", net.op("Add", outer, value))
    return net.model(x, [value])


def bottlenecks(x: Sequence[Dim] = (1, 64, 28, 28)) -> onnx.ModelProto:
    """ResNet's blocks: full 3x3 convolutions between 1x1 ones."""
    net = Net()
    value = "x"
    for _ in range(2):
        narrow = net.op("Relu", net.conv(value, (64, 16)))
        deep = net.op("Relu", net.conv(narrow, (16, 16), 3, pads=[1] * 4))
        value = net.op("Relu", net.op("Add", net.conv(deep, (16, 64)), value))
    return net.model(x, [value])


def half(proto: onnx.ModelProto, name: str = "float16") -> onnx.ModelProto:
    """The same net in float16, or in bfloat16."""
    dtype, element = np.float16, TensorProto.FLOAT16
    if name == "bfloat16":
        dtype, element = ml_dtypes.bfloat16, TensorProto.BFLOAT16
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = element
    return proto


def channels_last_blocks(x: Sequence[Dim] = (1, 3, 32, 32)) -> onnx.ModelProto:
    """Depthwise convolutions between layers of pixels in NHWC, as ConvNeXt has them.

    The second one reads an image that others read in NCHW as well, and its result too.
    """
    net = Net()
    value = net.conv("x", (3, 40), 4, strides=[4, 4])
    ones = net.weight(np.linspace(0.5, 1.5, 40, dtype=np.float32))
    outputs = []
    for number in range(2):
        pixels = net.op("Transpose", value, perm=[0, 2, 3, 1])
        image = net.op("Transpose", net.op("Mul", pixels, ones), perm=[0, 3, 1, 2])
        deep = net.op("Relu", net.depthwise(image, 40, 7))
        pixels = net.op("Transpose", deep, perm=[0, 2, 3, 1])
        value = net.op("Transpose", net.op("Mul", pixels, ones), perm=[0, 3, 1, 2])
        if number:
            outputs = [net.op("Neg", image), net.op("Neg", deep)]
    return net.model(x, [value, *outputs])


def enlarged_sums(x: Sequence[Dim] = (1, 16, 8, 12), opset: int = 19) -> onnx.ModelProto:
    """Images of three sizes, enlarged and added, between 1x1 convolutions; one is repeated."""
    net = Net(opset)
    region = "" if opset >= 13 else net.weight(np.zeros(0, np.float32))
    whole = net.conv("x", (16, 24))
    parts = []
    for factor, mode in ((2, "linear"), (4, "nearest")):
        small = net.conv("x", (16, 24), factor, strides=[factor, factor])
        scales = net.weight(np.array([1, 1, factor, factor], np.float32))
        where = "pytorch_half_pixel" if mode == "linear" else "asymmetric"
        attributes = {"mode": mode, "nearest_mode": "floor"}
        parts.append(
            net.op(
                "Resize", small, region, scales, coordinate_transformation_mode=where, **attributes
            )
        )
    total = net.op("Relu", net.op("Add", whole, net.op("Add", *parts)))
    return net.model(x, [net.conv(total, (24, 16)), net.op("Neg", whole)])


def joined_images(x: Sequence[Dim] = (1, 32, 24, 20)) -> onnx.ModelProto:
    """A U of two levels and a block of CSP: skips, branches and pooled images meet in Concats."""
    net = Net(opset=19)
    skip = net.op("Relu", net.conv("x", (32, 32), 3, pads=[1] * 4))
    half = net.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    deep = net.silu(net.conv(half, (32, 64), 3, pads=[1] * 4))
    scales = net.weight(np.array([1, 1, 2, 2], np.float32))
    up = net.op("Resize", deep, "", scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    both = net.silu(net.conv(net.op("Concat", up, skip, axis=1), (96, 32)))
    left, right = (net.silu(net.conv(both, (32, 17))) for _ in range(2))
    right = net.op("Add", right, net.silu(net.conv(right, (17, 17), 3, pads=[1] * 4)))
    joined = net.op("Concat", left, right, both, axis=-3)
    return net.model(x, [net.silu(net.conv(joined, (66, 32)))])

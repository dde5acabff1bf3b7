"""What `scripts/bench kernels` measures: pieces of networks as exporters write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_OPSET = 20
_ROOT_TWO = 2.0**0.5


@dataclass(frozen=True)
class Case:
    """One piece.

    Args:
        name: Of the table's row.
        goal: How many times as fast as ONNX Runtime it is to be on one thread; None: no goal.
        build: Makes the model.
        region: Makes the same with other layouts of inputs and outputs, for a kernel that wants
            them; None if the model itself is the region.
    """

    name: str
    goal: float | None
    build: Callable[[], onnx.ModelProto]
    region: Callable[[], onnx.ModelProto] | None = None

    def as_kernel(self) -> onnx.ModelProto:
        """Return the model that the kernel stands for."""
        return (self.region or self.build)()


class Writer:
    """A model in the making: every call adds a node and returns its output's name."""

    def __init__(self, dtype: type[np.floating[Any]] = np.float32, opset: int = _OPSET) -> None:
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, self._element, shape))
        return name

    def weight(self, name: str, *shape: int) -> str:
        array = self.rng.standard_normal(shape).astype(self.dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> str:
        return self._held(self.dtype.type(value))

    def integers(self, *values: int) -> str:
        return self._held(np.asarray(values, np.int64))

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"t{len(self.nodes)}"] + [f"t{len(self.nodes)}_{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def model(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(o, self._element, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "case", self.inputs, values, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    @property
    def _element(self) -> int:
        return helper.np_dtype_to_tensor_dtype(self.dtype)

    def _held(self, array: np.ndarray | np.generic) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def _gelu_residual() -> onnx.ModelProto:
    w = Writer()
    x = w("Add", w.input("x", 512, 3072), w.weight("bias", 3072))
    erf = w("Erf", w("Div", x, w.number(_ROOT_TWO)))
    gelu = w("Mul", w("Mul", x, w("Add", erf, w.number(1.0))), w.number(0.5))
    return w.model(w("Add", gelu, w.input("r", 512, 3072)))


def _add_norm(scale: Sequence[int]) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        w = Writer()
        total = w("Add", w.input("x", 1, 512, 768), w.input("r", 1, 512, 768))
        weights = w.weight("scale", *scale), w.weight("bias", *scale)
        norm = w("LayerNormalization", total, *weights, axis=-1, epsilon=1e-12)
        return w.model(norm, total)

    return build


def _softmax(length: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        w = Writer()
        scores = w.input("x", 1, 12, length, length)
        return w.model(w("Softmax", w("Add", scores, w.input("mask", 1, 1, 1, length)), axis=-1))

    return build


def _swiglu() -> onnx.ModelProto:
    w = Writer()
    gate, up = w.input("gate", 1, 128, 3072), w.input("up", 1, 128, 3072)
    return w.model(w("Mul", w("Mul", gate, w("Sigmoid", gate)), up))


def _rms_norm() -> onnx.ModelProto:
    w = Writer()
    x = w.input("x", 1, 128, 2048)
    mean = w("ReduceMean", w("Pow", x, w.number(2.0)), w.integers(-1))
    root = w("Sqrt", w("Add", mean, w.number(1e-6)))
    normal = w("Mul", x, w("Div", w.number(1.0), root))
    return w.model(w("Mul", w.weight("scale", 2048), normal))


def _rotary() -> onnx.ModelProto:
    w = Writer()
    x = w.input("x", 1, 12, 128, 64)
    cos, sin = w.input("cos", 1, 1, 128, 64), w.input("sin", 1, 1, 128, 64)
    first = w("Slice", x, w.integers(0), w.integers(32), w.integers(3))
    second = w("Slice", x, w.integers(32), w.integers(2**63 - 1), w.integers(3))
    rotated = w("Concat", w("Neg", second), first, axis=-1)
    return w.model(w("Add", w("Mul", x, cos), w("Mul", rotated, sin)))


def _heads() -> onnx.ModelProto:
    w = Writer()
    return w.model(w("Transpose", w.input("x", 1, 128, 12, 64), perm=[0, 2, 1, 3]))


def _mean() -> onnx.ModelProto:
    w = Writer()
    return w.model(w("ReduceMean", w.input("x", 1, 96, 112, 112), w.integers(2, 3)))


def _pool() -> onnx.ModelProto:
    w = Writer()
    return w.model(w("GlobalAveragePool", w.input("x", 1, 96, 112, 112)))


def _scale() -> onnx.ModelProto:
    w = Writer()
    return w.model(w("Mul", w.input("x", 1, 96, 112, 112), w.input("s", 1, 96, 1, 1)))


def _silu() -> onnx.ModelProto:
    w = Writer()
    x = w.input("x", 1, 96, 112, 112)
    return w.model(w("Mul", x, w("Sigmoid", x)))


def _depthwise(stride: int, *, is_plain: bool) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        w = Writer()
        weight = w.weight("weight", 96, 1, 3, 3)
        return w.model(_conv(w, w.input("x", 1, 96, 112, 112), weight, stride, is_plain=is_plain))

    return build


def depthwise_inner(
    stride: int, *, is_plain: bool, window: int = 3, size: int = 112
) -> Callable[[], onnx.ModelProto]:
    """The same in NHWC layout, as a net is rewritten in which it is one of many."""

    def build() -> onnx.ModelProto:
        w = Writer()
        weight = w("Transpose", w.weight("weight", window, window, 1, 96), perm=[3, 2, 0, 1])
        x = w("Transpose", w.input("x", 1, size, size, 96), perm=[0, 3, 1, 2])
        y = _conv(w, x, weight, stride, window, is_plain=is_plain)
        return w.model(w("Transpose", y, perm=[0, 2, 3, 1]))

    return build


def _conv(w: Writer, x: str, weight: str, stride: int, window: int = 3, *, is_plain: bool) -> str:
    operands = [x, weight] if is_plain else [x, weight, w.weight("bias", 96)]
    y = w(
        "Conv", *operands, group=96, kernel_shape=[window] * 2, strides=[stride] * 2,
        pads=[window // 2] * 4,
    )  # fmt: skip
    return y if is_plain else w("Clip", y, w.number(0.0), w.number(6.0))


def _depthwise_case(name: str, goal: float | None, stride: int, *, is_plain: bool) -> Case:
    before, kernel = (make(stride, is_plain=is_plain) for make in (_depthwise, depthwise_inner))
    return Case(name, goal, before, kernel)


CASES = (
    Case("bias + erf-GELU + residual 512x3072", 2.4, _gelu_residual),
    Case("Add + LayerNorm 512x768, 2 outputs", 2.0, _add_norm([768])),
    # With a scale of two axes ONNX Runtime keeps Add and LayerNormalization, which it is faster
    # at than at the SkipLayerNormalization that it makes of the row above.
    Case("Add + LayerNorm, not fused by ORT", 2.0, _add_norm([1, 768])),
    Case("masked softmax 12x128x128", 1.25, _softmax(128)),
    Case("masked softmax 12x512x512", 1.25, _softmax(512)),
    Case("SwiGLU 128x3072", 1.4, _swiglu),
    Case("RMSNorm 128x2048", 1.9, _rms_norm),
    Case("rotary, written out, 12x128x64", 10.0, _rotary),
    Case("head transpose 128x12x64", 2.5, _heads),
    Case("global mean 96x112x112", 3.5, _mean),
    Case("GlobalAveragePool 96x112x112", None, _pool),
    Case("channel scale 96x112x112", None, _scale),
    _depthwise_case("depthwise 3x3 s1 96x112x112", 2.0, 1, is_plain=True),
    _depthwise_case("depthwise 3x3 s1 + bias + relu6", 2.0, 1, is_plain=False),
    _depthwise_case("depthwise 3x3 s2 + bias + relu6", None, 2, is_plain=False),
    Case("SiLU 96x112x112", 1.0, _silu),
)

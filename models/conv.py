"""Convolution, batch normalization and activation, in each spelling.

An image is [batch, channels, height, width], in the spelling "keras" [batch, height, width,
channels].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from onnx import TensorProto, helper

from models import layers
from models.builder import DYNAMO, KERAS, TS, UNFUSED, UNFUSED_BIAS, FloatArray, Spelling

if TYPE_CHECKING:
    from models.builder import Tape

SPELLINGS: dict[str, Spelling] = {
    spelling.name: spelling for spelling in (DYNAMO, TS, UNFUSED, UNFUSED_BIAS, KERAS)
}
Activation = Literal["none", "relu", "relu6", "silu", "hardswish"]
EPSILON = 1e-3


@dataclass(frozen=True)
class Conv:
    """A 2-D convolution with the batch normalization and activation that follow it."""

    name: str
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    activation: Activation = "none"
    gain: float = 1.0
    """What the weights are scaled by, beyond what keeps the size of the values."""
    padding: Literal["symmetric", "same", "computed"] = "symmetric"
    """Half the kernel on each side; or as TensorFlow pads; or so by a chain of nodes in TS."""

    @property
    def pads(self) -> tuple[int, int]:
        """What is added before and after, on images of even size."""
        if self.padding == "symmetric" or self.stride == 1:
            return self.kernel // 2, self.kernel // 2
        missing = max(self.kernel - self.stride, 0)
        return missing // 2, missing - missing // 2


@dataclass(frozen=True)
class Parameters:
    """What a convolution and its normalization have learned, unfolded."""

    weight: FloatArray
    bias: FloatArray
    scale: FloatArray
    shift: FloatArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def draw(cls, b: Tape, conv: Conv) -> Parameters:
        """Draw them all; the normalization is never trivial."""
        n, name = conv.outputs, conv.name
        return cls(
            weight=b.draw(f"{name}.weight", *_weight_shape(conv), scale=_spread(conv)),
            bias=b.draw(f"{name}.bias", n, scale=0.1),
            scale=b.draw(f"{name}.norm.weight", n, scale=0.1, mean=1.0),
            shift=b.draw(f"{name}.norm.bias", n, scale=0.1),
            mean=b.draw(f"{name}.norm.running_mean", n, scale=0.1),
            variance=np.exp(b.draw(f"{name}.norm.running_var", n, scale=0.2)),
        )

    def folded(self) -> tuple[FloatArray, FloatArray]:
        """Return the weight and bias of the one convolution that does the same."""
        factor = self.scale / np.sqrt(self.variance + np.float32(EPSILON))
        weight = self.weight * factor[:, None, None, None]
        return weight, (self.bias - self.mean) * factor + self.shift


def conv_block(b: Tape, x: str, conv: Conv) -> str:
    """Convolve, normalize and activate."""
    p = Parameters.draw(b, conv)
    with b.scope(conv.name):
        if b.spelling == KERAS:
            x = _keras_conv(b, x, conv, b.parameter(f"{conv.name}/kernel", p.weight))
            x = nchw(
                b, "BatchNormalization", x, *_norm(b, conv, p, p.mean - p.bias), epsilon=EPSILON
            )
        elif b.spelling in (UNFUSED, UNFUSED_BIAS):
            has_bias = b.spelling == UNFUSED_BIAS
            weights = [b.parameter(f"{conv.name}.weight", p.weight)]
            if has_bias:
                weights.append(b.parameter(f"{conv.name}.bias", p.bias))
            x = _conv(b, x, conv, *weights)
            norm = _norm(b, conv, p, p.mean if has_bias else p.mean - p.bias)
            x = b.op("BatchNormalization", x, *norm, epsilon=EPSILON, momentum=0.9)
        else:
            x = _conv(b, x, conv, *(_folded(b, conv, i, v) for i, v in enumerate(p.folded())))
        return activate(b, x, conv.activation)


def bare_conv(b: Tape, x: str, conv: Conv) -> str:
    """Convolve with a bias and activate, without a normalization."""
    weight = b.draw(f"{conv.name}.weight", *_weight_shape(conv), scale=_spread(conv))
    bias = b.weight(f"{conv.name}.bias", conv.outputs, scale=0.1)
    with b.scope(conv.name):
        kernel = b.parameter(f"{conv.name}.weight", weight)
        if b.spelling == KERAS:
            x = b.op("Add", _keras_conv(b, x, conv, kernel), bias)
        else:
            x = _conv(b, x, conv, kernel, bias)
        return activate(b, x, conv.activation)


def activate(b: Tape, x: str, activation: Activation) -> str:
    """Apply an activation as the spelling writes it."""
    if activation == "relu":
        return b.op("Relu", x)
    if activation == "relu6":
        return b.op("Clip", x, b.scalar(0.0), b.scalar(6.0))
    if activation == "silu":
        return layers.silu(b, x)
    if activation == "hardswish":
        if b.spelling == KERAS:
            gate = b.op("Clip", b.op("Add", x, b.scalar(3.0)), b.scalar(0.0), b.scalar(6.0))
            return b.op("Mul", b.op("Mul", x, gate), b.scalar(1 / 6))
        return b.op("HardSwish", x)
    return x


def nchw(
    b: Tape, op_type: str, x: str, *inputs: str, **attributes: float | str | list[int]
) -> str:
    """Apply an operator that wants channels first, between transposes in "keras"."""
    if b.spelling != KERAS:
        return b.op(op_type, x, *inputs, **attributes)
    return b.transpose(
        b.op(op_type, b.transpose(x, 0, 3, 1, 2), *inputs, **attributes), 0, 2, 3, 1
    )


def global_pool(b: Tape, x: str, *, keepdims: bool = True) -> str:
    """Average over height and width."""
    if b.spelling == DYNAMO:
        return b.reduce_mean(x, -1, -2, keepdims=keepdims)
    if b.spelling == KERAS:
        return b.reduce_mean(x, 1, 2, keepdims=keepdims)
    pooled = b.op("GlobalAveragePool", x)
    return pooled if keepdims else b.op("Flatten", pooled, axis=1)


def classify(b: Tape, x: str, name: str, channels: int, classes: int) -> str:
    """Pool, and multiply by the classifier's matrix."""
    matrix = b.draw(f"{name}.weight", classes, channels, scale=1 / math.sqrt(channels))
    bias = b.weight(f"{name}.bias", classes, scale=0.1)
    with b.scope(name):
        if b.spelling == KERAS:
            product = b.op(
                "MatMul", global_pool(b, x, keepdims=False), b.parameter(name, matrix.T)
            )
            return b.op("Add", product, bias)
        if b.spelling == DYNAMO:
            pooled = b.reshape(global_pool(b, x), b.dim(x, 0), channels)
        else:
            pooled = global_pool(b, x, keepdims=False)
        weight = b.parameter(f"{name}.weight", matrix)
        return b.op("Gemm", pooled, weight, bias, alpha=1.0, beta=1.0, transB=1)


# ---- one convolution ----


def _weight_shape(conv: Conv) -> tuple[int, int, int, int]:
    return conv.outputs, conv.inputs // conv.groups, conv.kernel, conv.kernel


def _spread(conv: Conv) -> float:
    return conv.gain * math.sqrt(2 / math.prod(_weight_shape(conv)[1:]))


def _folded(b: Tape, conv: Conv, index: int, value: FloatArray) -> str:
    if b.spelling == DYNAMO:
        return b.parameter(f"{conv.name}.{('weight', 'weight_bias')[index]}", value)
    return b.folded_weight("Conv", value)


def _norm(b: Tape, conv: Conv, p: Parameters, mean: FloatArray) -> list[str]:
    """Write the four inputs of BatchNormalization."""
    values = {"weight": p.scale, "bias": p.shift, "running_mean": mean, "running_var": p.variance}
    return [b.parameter(f"{conv.name}.norm.{key}", value) for key, value in values.items()]


def _attributes(conv: Conv) -> dict[str, int | list[int]]:
    return {
        "dilations": [1, 1],
        "group": conv.groups,
        "kernel_shape": [conv.kernel, conv.kernel],
        "strides": [conv.stride, conv.stride],
    }


def _conv(b: Tape, x: str, conv: Conv, *weights: str) -> str:
    before, after = conv.pads
    attributes = _attributes(conv)
    if b.spelling == TS and conv.padding != "symmetric":
        if conv.padding == "computed" or before != after:
            x = _pad_chain(b, x, before, after)
        if conv.padding == "computed":
            return b.op("Conv", x, *weights, pads=[0] * 4, **attributes)
        auto_pad = "SAME_UPPER" if before == after else "VALID"
        return b.op("Conv", x, *weights, auto_pad=auto_pad, **attributes)
    return b.op("Conv", x, *weights, pads=[before, before, after, after], **attributes)


def _pad_chain(b: Tape, x: str, before: int, after: int) -> str:
    """Pad height and width in the eight steps in which TorchScript turns torch's padding list,
    last axis first, into ONNX's."""
    zero = helper.make_tensor("value", TensorProto.INT64, [1], [0])
    rest = b.op("ConstantOfShape", b.ints(4), value=zero)
    listed = b.op("Concat", b.ints(before, after, before, after), rest, axis=0)
    pairs = b.op("Reshape", listed, b.ints(-1, 2), allowzero=0)
    first, last, axis = b.ints(-1), b.ints(-np.iinfo(np.int64).max), b.ints(0)
    flipped = b.op("Slice", pairs, first, last, axis, b.ints(-1))
    flat = b.op("Reshape", b.transpose(flipped, 1, 0), b.ints(-1), allowzero=0)
    return b.op("Pad", x, b.op("Cast", flat, to=TensorProto.INT64), b.scalar(0.0), mode="constant")


def _keras_conv(b: Tape, x: str, conv: Conv, weight: str) -> str:
    before, after = conv.pads
    attributes = _attributes(conv)
    if conv.stride == 1:
        return nchw(b, "Conv", x, weight, auto_pad="SAME_UPPER", **attributes)
    if before or after:
        x = b.op("Pad", x, b.ints(0, before, before, 0, 0, after, after, 0), mode="constant")
    return nchw(b, "Conv", x, weight, auto_pad="VALID", **attributes)

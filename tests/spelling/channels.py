"""Norms over channels, softmax, convolutions with what follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tests.spelling.case import MS, Formula
from tests.spelling.writer import Writer

CHANNELS = 8
GROUPS = 2


# ---- GroupNorm and InstanceNorm ----


def group_norm_torch(w: Writer) -> str:
    """Torch: Reshape, InstanceNormalization, Reshape, Mul, Add."""
    x = w.input("x", "B", CHANNELS, "X", "Y")
    flat = w.reshape(x, 0, GROUPS, -1)
    ones, zeros = np.ones(GROUPS, np.float32), np.zeros(GROUPS, np.float32)
    y = w.op("InstanceNormalization", flat, w.array(ones), w.array(zeros), epsilon=1e-5)
    y = w.op("Reshape", y, w.op("Shape", x))
    y = w.mul(y, w.weight(CHANNELS, 1, 1, mean=1))
    return w.add(y, w.weight(CHANNELS, 1, 1))


def group_norm_written_out(w: Writer) -> str:
    """Keras and JAX: Reshape, mean and variance over each group, Reshape, Mul, Add."""
    x = w.input("x", "B", CHANNELS, "X", "Y")
    flat = w.reshape(x, 0, GROUPS, -1)
    centered = w.sub(flat, w.reduce("ReduceMean", flat, 2))
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), 2)
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))
    y = w.op("Reshape", y, w.op("Shape", x))
    y = w.mul(y, w.weight(1, CHANNELS, 1, 1, mean=1))
    return w.add(y, w.weight(1, CHANNELS, 1, 1))


def group_norm_five(w: Writer) -> str:
    """Over [B, G, C / G, X, Y]."""
    x = w.input("x", "B", CHANNELS, "X", "Y")
    high, wide = w.dim(x, 2), w.dim(x, 3)
    parts = w.reshape(x, -1, GROUPS, CHANNELS // GROUPS, high, wide)
    centered = w.sub(parts, w.reduce("ReduceMean", parts, 2, 3, 4))
    variance = w.reduce("ReduceMean", w.op("Pow", centered, w.number(2)), 2, 3, 4)
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-6))))
    y = w.op("Reshape", y, w.op("Shape", x))
    y = w.mul(y, w.weight(CHANNELS, 1, 1, mean=1))
    return w.add(y, w.weight(CHANNELS, 1, 1))


def instance_norm(how: Literal["pow", "mul", "moments"]) -> Callable[[Writer], str]:
    """(x - mean) / sqrt(variance + epsilon) over the axes of the image."""

    def write(w: Writer) -> str:
        x = w.input("x", "B", CHANNELS, "X", "Y")
        mean = w.reduce("ReduceMean", x, 2, 3)
        centered = w.sub(x, mean)
        if how == "moments":
            square = w.reduce("ReduceMean", w.op("Mul", x, x), 2, 3)
            variance = w.sub(square, w.op("Mul", mean, mean))
        elif how == "pow":
            variance = w.reduce("ReduceMean", w.op("Pow", centered, w.number(2)), 2, 3)
        else:
            variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), 2, 3)
        y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))
        return w.add(w.mul(y, w.weight(1, CHANNELS, 1, 1, mean=1)), w.weight(1, CHANNELS, 1, 1))

    return write


# ---- softmax ----


def softmax(
    *, shift: bool = True, axis: int = -1, how: Literal["div", "reciprocal", "log"] = "div"
) -> Callable[[Writer], str]:
    """exp(x - max) / sum, or with exp(x - log(sum))."""

    def write(w: Writer) -> str:
        x = w.input("x", "B", "S", CHANNELS)
        if shift:
            x = w.sub(x, w.reduce("ReduceMax", x, axis))
        exp = w.op("Exp", x)
        total = w.reduce("ReduceSum", exp, axis)
        if how == "log":
            return w.op("Exp", w.sub(x, w.op("Log", total)))
        return w.mul(exp, w.op("Reciprocal", total)) if how == "reciprocal" else w.div(exp, total)

    return write


def softmax_unsqueezed(w: Writer) -> str:
    """Reductions that drop the axis."""
    x = w.input("x", "B", "S", CHANNELS)
    top = w.unsqueeze(w.reduce("ReduceMax", x, -1, keepdims=0), -1)
    exp = w.op("Exp", w.sub(x, top))
    return w.div(exp, w.unsqueeze(w.reduce("ReduceSum", exp, -1, keepdims=0), -1))


def log_softmax_log(w: Writer) -> str:
    """log(softmax(x))."""
    return w.op("Log", w.op("Softmax", w.input("x", "B", "S", CHANNELS), axis=-1))


def log_softmax_shifted(w: Writer) -> str:
    """x - max - log(sum(exp(x - max)))."""
    x = w.input("x", "B", "S", CHANNELS)
    z = w.sub(x, w.reduce("ReduceMax", x, -1))
    return w.sub(z, w.op("Log", w.reduce("ReduceSum", w.op("Exp", z), -1)))


def log_softmax_reduced(w: Writer) -> str:
    """x - ReduceLogSumExp(x)."""
    x = w.input("x", "B", "S", CHANNELS)
    return w.sub(x, w.reduce("ReduceLogSumExp", x, 1))


# ---- convolutions ----


def _conv(w: Writer, *, bias: bool = False) -> str:
    x = w.input("x", "B", 4, "X", "Y")
    more = [w.weight(CHANNELS)] if bias else []
    return w.op("Conv", x, w.weight(CHANNELS, 4, 3, 3), *more, pads=[1, 1, 1, 1])


def _moments(w: Writer, *shape: int) -> tuple[str, str]:
    random = np.random.default_rng(3)
    mean = random.standard_normal(shape).astype(np.float32)
    return w.array(mean), w.array((0.5 + random.random(shape)).astype(np.float32))


def conv_batch_norm(w: Writer) -> str:
    """Conv, BatchNormalization."""
    y = _conv(w, bias=w.manner.swapped)
    mean, variance = _moments(w, CHANNELS)
    scale, shift = w.weight(CHANNELS, mean=1), w.weight(CHANNELS)
    return w.op("BatchNormalization", y, scale, shift, mean, variance)


def batch_norm_written_out(w: Writer) -> str:
    """Conv, then (x - mean) / sqrt(variance + epsilon) * weight + bias."""
    mean, variance = _moments(w, 1, CHANNELS, 1, 1)
    y = w.sub(_conv(w), mean)
    y = w.div(y, w.op("Sqrt", w.add(variance, w.number(1e-3))))
    return w.add(w.mul(y, w.weight(CHANNELS, 1, 1, mean=1)), w.weight(CHANNELS, 1, 1))


def batch_norm_frozen(w: Writer) -> str:
    """DETR's FrozenBatchNorm: scale and shift computed from the moments."""
    mean, variance = _moments(w, 1, CHANNELS, 1, 1)
    root = w.op("Reciprocal", w.op("Sqrt", w.add(variance, w.number(1e-5))))
    scale = w.mul(w.weight(1, CHANNELS, 1, 1, mean=1), root)
    shift = w.sub(w.weight(1, CHANNELS, 1, 1), w.mul(mean, scale))
    return w.add(w.mul(_conv(w), scale), shift)


def conv_relu(w: Writer) -> str:
    """Conv, Relu."""
    return w.op("Relu", _conv(w, bias=True))


def conv_leaky(w: Writer) -> str:
    """Conv, then max(x, 0.1 x)."""
    y = _conv(w, bias=True)
    return w.maximum(y, w.mul(y, w.number(0.1)))


def conv_relu6(w: Writer) -> str:
    """Conv, then min(max(x, 0), 6)."""
    return w.minimum(w.maximum(_conv(w), w.number(0)), w.number(6))


def _channel(
    op: str,
    name: str,
    write: Callable[[Writer], str],
    gone: set[str],
    *wanted: str,
    count: int = 2,
) -> Formula:
    return Formula(op, name, write, frozenset(wanted), frozenset(gone), manners=count)


_ROWS = {"ReduceMean", "Sqrt", "Pow", "Reciprocal", "Div"}
_EXP = {"Exp", "ReduceMax", "ReduceSum", "Log", "Div", "Reciprocal"}
FORMULAS: tuple[Formula, ...] = (
    _channel(
        "GroupNorm", "torch", group_norm_torch, {"InstanceNormalization"}, "GroupNormalization"
    ),
    _channel("GroupNorm", "written out", group_norm_written_out, _ROWS, "GroupNormalization"),
    _channel("GroupNorm", "five axes", group_norm_five, _ROWS, "GroupNormalization"),
    _channel("InstanceNorm", "power", instance_norm("pow"), _ROWS, "InstanceNormalization"),
    _channel("InstanceNorm", "product", instance_norm("mul"), _ROWS, "InstanceNormalization"),
    _channel("InstanceNorm", "moments", instance_norm("moments"), _ROWS, "InstanceNormalization"),
    _channel("Softmax", "shifted", softmax(), _EXP, "Softmax"),
    _channel("Softmax", "not shifted", softmax(shift=False), _EXP, "Softmax"),
    _channel("Softmax", "axis 1", softmax(axis=1), _EXP, "Softmax"),
    _channel("Softmax", "reciprocal", softmax(how="reciprocal"), _EXP, "Softmax"),
    _channel("Softmax", "logarithm", softmax(how="log"), _EXP, "Softmax"),
    _channel("Softmax", "unsqueezed", softmax_unsqueezed, _EXP, "Softmax"),
    _channel("LogSoftmax", "log", log_softmax_log, _EXP | {"Softmax"}, "LogSoftmax"),
    _channel("LogSoftmax", "shifted", log_softmax_shifted, _EXP, "LogSoftmax"),
    _channel("LogSoftmax", "reduced", log_softmax_reduced, {"ReduceLogSumExp"}, "LogSoftmax"),
    _channel("Conv + BatchNorm", "op", conv_batch_norm, {"BatchNormalization"}, "Conv"),
    _channel("BatchNorm", "written out", batch_norm_written_out, {"Mul", "Add", "Div"}, "Conv"),
    _channel("BatchNorm", "frozen", batch_norm_frozen, {"Mul", "Add", "Div"}, "Conv"),
    _channel("Conv + activation", "relu", conv_relu, {"Relu"}, MS + "FusedConv"),
    _channel("Conv + activation", "leaky", conv_leaky, {"Max", "Mul"}, MS + "FusedConv"),
    _channel("Conv + activation", "relu6", conv_relu6, {"Min", "Max"}, MS + "FusedConv"),
)

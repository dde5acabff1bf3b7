"""LayerNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tests.spelling.case import LAYER_NORM, RMS_NORM, Formula
from tests.spelling.writer import Writer

WIDTH = 16
Square = Literal["pow", "mul", "square node"]
Root = Literal["div", "reciprocal", "pow", "rsqrt mul"]


def squared(w: Writer, x: str, how: Square) -> str:
    """x to the second power."""
    return w.op("Pow", x, w.number(2)) if how == "pow" else w.op("Mul", x, x)


def divided(w: Writer, x: str, variance: str, epsilon: float, how: Root) -> str:
    """x over the root of variance plus epsilon."""
    shifted = w.add(variance, w.number(epsilon))
    match how:
        case "div":
            return w.div(x, w.op("Sqrt", shifted))
        case "pow":
            return w.mul(x, w.op("Pow", shifted, w.number(-0.5)))
        case "reciprocal":
            return w.mul(x, w.op("Reciprocal", w.op("Sqrt", shifted)))
        case _:
            return w.mul(x, w.div(w.number(1), w.op("Sqrt", shifted)))


def norm(
    op: str, name: str, write: Callable[[Writer], object], *, since: int = 13, count: int = 2
) -> Formula:
    """A formula of a norm."""
    wanted = RMS_NORM if op.startswith(("RMS", "Gemma")) else LAYER_NORM
    gone = {"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "Sqrt", "Pow", "Reciprocal"}
    return Formula(op, name, write, wanted, frozenset(gone), since, count)  # type: ignore[arg-type]


def layer_norm(
    square: Square = "pow", root: Root = "div", *, affine: bool = True, epsilon: float = 1e-5
) -> Callable[[Writer], str]:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias."""

    def write(w: Writer) -> str:
        x = w.input("x", "B", "S", WIDTH)
        centered = w.sub(x, w.reduce("ReduceMean", x, -1))
        variance = w.reduce("ReduceMean", squared(w, centered, square), -1)
        y = divided(w, centered, variance, epsilon, root)
        return w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH)) if affine else y

    return write


def layer_norm_twice(w: Writer) -> str:
    """Old torch exports subtract the mean twice."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", x, -1)
    first, second = w.sub(x, mean), w.sub(x, mean)
    variance = w.reduce("ReduceMean", w.op("Pow", first, w.number(2)), -1)
    y = w.div(second, w.op("Sqrt", w.add(variance, w.number(1e-12))))
    return w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH))


def layer_norm_keras(w: Writer) -> str:
    """tf.nn.batch_normalization: x * (rsqrt * w) + (b - mean * rsqrt * w)."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", x, -1)
    centered = w.sub(x, mean)
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), -1)
    inverse = w.op("Reciprocal", w.op("Sqrt", w.add(variance, w.number(1e-3))))
    scale = w.mul(inverse, w.weight(WIDTH, mean=1))
    return w.add(w.mul(x, scale), w.sub(w.weight(WIDTH), w.mul(mean, scale)))


def layer_norm_moments(w: Writer) -> str:
    """JAX: the variance as E[x^2] - E[x]^2."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", x, -1)
    square = w.reduce("ReduceMean", w.op("Mul", x, x), -1)
    variance = w.sub(square, w.op("Mul", mean, mean))
    scale = w.mul(
        w.op("Reciprocal", w.op("Sqrt", w.add(variance, w.number(1e-6)))),
        w.weight(WIDTH, mean=1),
    )
    return w.add(w.mul(w.sub(x, mean), scale), w.weight(WIDTH))


def layer_norm_sums(w: Writer) -> str:
    """Sums divided by the width."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.div(w.reduce("ReduceSum", x, -1), w.number(WIDTH))
    centered = w.sub(x, mean)
    total = w.reduce("ReduceSum", w.op("Mul", centered, centered), -1)
    variance = w.mul(total, w.number(1 / WIDTH))
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))
    return w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH))


def layer_norm_two_axes(w: Writer) -> str:
    """Over the last two axes, as for images."""
    x = w.input("x", "B", "S", 4, 8)
    centered = w.sub(x, w.reduce("ReduceMean", x, -2, -1))
    variance = w.reduce("ReduceMean", w.op("Pow", centered, w.number(2)), -2, -1)
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))
    return w.add(w.mul(y, w.weight(4, 8, mean=1)), w.weight(4, 8))


def layer_norm_unsqueezed(w: Writer) -> str:
    """Reductions that drop the axis, which Unsqueeze puts back."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.unsqueeze(w.reduce("ReduceMean", x, 2, keepdims=0), 2)
    centered = w.sub(x, mean)
    square = w.op("Mul", centered, centered)
    variance = w.unsqueeze(w.reduce("ReduceMean", square, 2, keepdims=0), 2)
    y = w.div(centered, w.op("Sqrt", w.add(w.number(1e-5), variance)))
    return w.add(w.mul(w.weight(WIDTH, mean=1), y), w.weight(WIDTH))


def layer_norm_float16(w: Writer) -> str:
    """Of a float16 value, in float32."""
    x = w.cast(w.input("x", "B", "S", WIDTH, dtype=np.float16), np.float32)
    centered = w.sub(x, w.reduce("ReduceMean", x, -1))
    variance = w.reduce("ReduceMean", w.op("Pow", centered, w.number(2)), -1)
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-5))))
    y = w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH))
    return w.cast(y, np.float16)


def layer_norm_affine_apart(w: Writer) -> str:
    """LayerNormalization without weight, then Mul and Add (Paddle, timm)."""
    x = w.input("x", "B", "S", WIDTH)
    ones = w.array(np.ones(WIDTH, np.float32))
    y = w.op("LayerNormalization", x, ones, epsilon=1e-6)
    return w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH))


def layer_norm_channels_first(w: Writer) -> str:
    """ConvNeXt: over the channels of an image, between transposes."""
    x = w.transpose(w.input("x", "B", WIDTH, "X", "Y"), 0, 2, 3, 1)
    centered = w.sub(x, w.reduce("ReduceMean", x, 3))
    variance = w.reduce("ReduceMean", w.op("Pow", centered, w.number(2)), 3)
    y = w.div(centered, w.op("Sqrt", w.add(variance, w.number(1e-6))))
    y = w.add(w.mul(y, w.weight(WIDTH, mean=1)), w.weight(WIDTH))
    return w.transpose(y, 0, 3, 1, 2)


FORMULAS: tuple[Formula, ...] = (
    norm("LayerNorm", "torch", layer_norm(), count=4),
    norm("LayerNorm", "product", layer_norm("mul")),
    norm("LayerNorm", "reciprocal", layer_norm("mul", "reciprocal")),
    norm("LayerNorm", "power", layer_norm("pow", "pow")),
    norm("LayerNorm", "rsqrt", layer_norm("mul", "rsqrt mul", epsilon=1e-12)),
    norm("LayerNorm", "no affine", layer_norm(affine=False)),
    norm("LayerNorm", "mean twice", layer_norm_twice),
    norm("LayerNorm", "keras", layer_norm_keras),
    norm("LayerNorm", "moments", layer_norm_moments),
    norm("LayerNorm", "sums", layer_norm_sums),
    norm("LayerNorm", "two axes", layer_norm_two_axes),
    norm("LayerNorm", "unsqueezed", layer_norm_unsqueezed),
    norm("LayerNorm", "float16", layer_norm_float16),
    norm("LayerNorm", "affine apart", layer_norm_affine_apart, since=17, count=1),
    norm("LayerNorm", "channels first", layer_norm_channels_first, count=1),
)

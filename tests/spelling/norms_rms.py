"""RMSNorm, and norms of a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from tests.spelling.case import Formula
from tests.spelling.norms import WIDTH, Root, Square, divided, norm, squared
from tests.spelling.writer import Writer


def rms_norm(
    square: Square = "pow",
    root: Root = "reciprocal",
    *,
    weight: Literal["last", "first", "plus one", "none", "vector"] = "last",
    epsilon: float = 1e-6,
) -> Callable[[Writer], str]:
    """x / sqrt(mean of squares + epsilon) * weight."""

    def write(w: Writer) -> str:
        x = w.input("x", "B", "S", WIDTH)
        mean = w.reduce("ReduceMean", squared(w, x, square), -1)
        y = divided(w, x, mean, epsilon, root)
        match weight:
            case "none":
                return y
            case "plus one":
                return w.mul(y, w.add(w.weight(WIDTH), w.number(1)))
            case "vector":
                return w.mul(y, w.weight(1, 1, WIDTH, mean=1))
            case "first":
                return w.op("Mul", w.weight(WIDTH, mean=1), y)
            case _:
                return w.op("Mul", y, w.weight(WIDTH, mean=1))

    return write


def rms_norm_merged(w: Writer) -> str:
    """x * (rsqrt(mean of squares) * weight)."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.reduce("ReduceMean", w.op("Mul", x, x), -1)
    inverse = w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6))))
    return w.mul(x, w.mul(inverse, w.weight(WIDTH, mean=1)))


def rms_norm_sum(w: Writer) -> str:
    """ReduceSumSquare over the width."""
    x = w.input("x", "B", "S", WIDTH)
    mean = w.div(w.reduce("ReduceSumSquare", x, -1), w.number(WIDTH))
    y = w.div(x, w.op("Sqrt", w.add(mean, w.number(1e-5))))
    return w.mul(y, w.weight(WIDTH, mean=1))


def rms_norm_shape(w: Writer) -> str:
    """ReduceSum over a width that is read from the shape."""
    x = w.input("x", "B", "S", WIDTH)
    width = w.cast(w.dim_scalar(x, 2), np.float32)
    mean = w.div(w.reduce("ReduceSum", w.op("Mul", x, x), -1), width)
    y = w.div(x, w.op("Sqrt", w.add(mean, w.number(1e-5))))
    return w.mul(y, w.weight(WIDTH, mean=1))


def rms_norm_norm(w: Writer) -> str:
    """x / (norm / sqrt(width)) without epsilon, PaLM's scale norm with a weight."""
    x = w.input("x", "B", "S", WIDTH)
    root = w.mul(w.reduce("ReduceL2", x, -1), w.number(WIDTH**-0.5))
    return w.mul(w.div(x, root), w.weight(WIDTH, mean=1))


def rms_norm_float16(w: Writer) -> str:
    """Llama in float16: in float32, cast back, then the weight."""
    given = w.input("x", "B", "S", WIDTH, dtype=np.float16)
    x = w.cast(given, np.float32)
    mean = w.reduce("ReduceMean", w.op("Pow", x, w.number(2)), -1)
    y = w.mul(x, w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6)))))
    return w.mul(w.cast(y, np.float16), w.weight(WIDTH, mean=1, dtype=np.float16))


def rms_norm_gemma_float16(w: Writer) -> str:
    """Gemma in float16: times 1 + weight in float32, then cast back."""
    x = w.cast(w.input("x", "B", "S", WIDTH, dtype=np.float16), np.float32)
    mean = w.reduce("ReduceMean", w.op("Pow", x, w.number(2)), -1)
    y = w.mul(x, w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6)))))
    weight = w.cast(w.weight(WIDTH, dtype=np.float16), np.float32)
    y = w.mul(y, w.add(w.number(1), weight))
    return w.cast(y, np.float16)


def rms_norm_heads(w: Writer) -> str:
    """Of each head of [B, S, H, D] (Qwen-3)."""
    x = w.input("x", "B", "S", 2, 8)
    mean = w.reduce("ReduceMean", w.op("Pow", x, w.number(2)), -1)
    y = w.mul(x, w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6)))))
    return w.mul(w.weight(8, mean=1), y)


# ---- over a skip connection ----


def _skip(norm: Literal["layer", "rms"], *, bias: bool, kept: bool) -> Callable[[Writer], object]:
    def write(w: Writer) -> tuple[str, ...]:
        x = w.input("x", "B", "S", WIDTH)
        branch = w.linear(w.input("z", "B", "S", WIDTH), WIDTH, WIDTH, bias=bias)
        total = w.add(branch, x)
        if norm == "layer":
            y = w.op("LayerNormalization", total, w.weight(WIDTH, mean=1), w.weight(WIDTH))
        else:
            mean = w.reduce("ReduceMean", w.op("Pow", total, w.number(2)), -1)
            y = w.mul(total, w.op("Reciprocal", w.op("Sqrt", w.add(mean, w.number(1e-6)))))
            y = w.mul(w.weight(WIDTH, mean=1), y)
        return (y, total) if kept else (y,)

    return write


def _skip_norm(op: str, name: str, write: Callable[[Writer], object]) -> Formula:
    stem = "SkipSimplifiedLayerNormalization" if "RMS" in op else "SkipLayerNormalization"
    wanted = frozenset({f"com.microsoft::{stem}"})
    gone = frozenset({"Add", "Sqrt", "ReduceMean"})
    return Formula(op, name, write, wanted, gone, since=17)  # type: ignore[arg-type]


FORMULAS: tuple[Formula, ...] = (
    norm("RMSNorm", "torch", rms_norm(), count=4),
    norm("RMSNorm", "dynamo", rms_norm(weight="first")),
    norm("RMSNorm", "quotient", rms_norm("pow", "div", epsilon=1e-5)),
    norm("RMSNorm", "product", rms_norm("mul", "reciprocal")),
    norm("RMSNorm", "power", rms_norm("mul", "pow")),
    norm("RMSNorm", "no weight", rms_norm(weight="none")),
    norm("RMSNorm", "wide weight", rms_norm("mul", "div", weight="vector")),
    norm("RMSNorm", "merged", rms_norm_merged),
    norm("RMSNorm", "sum of squares", rms_norm_sum),
    norm("RMSNorm", "width read", rms_norm_shape),
    norm("RMSNorm", "norm", rms_norm_norm, count=1),
    norm("RMSNorm", "float16", rms_norm_float16),
    norm("RMSNorm", "heads", rms_norm_heads),
    norm("Gemma RMSNorm", "one more", rms_norm(weight="plus one")),
    norm("Gemma RMSNorm", "float16", rms_norm_gemma_float16),
    _skip_norm("skip LayerNorm", "plain", _skip("layer", bias=False, kept=False)),
    _skip_norm("skip LayerNorm", "bias", _skip("layer", bias=True, kept=False)),
    _skip_norm("skip LayerNorm", "sum read", _skip("layer", bias=True, kept=True)),
    _skip_norm("skip RMSNorm", "plain", _skip("rms", bias=False, kept=False)),
    _skip_norm("skip RMSNorm", "sum read", _skip("rms", bias=False, kept=True)),
)

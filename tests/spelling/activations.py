"""Activations, as torch, transformers, TensorFlow, Keras, JAX and PaddlePaddle write them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.spelling.case import GELU, SILU, Formula, Write
from tests.spelling.writer import Writer

WIDTH = 16
Pointwise = Callable[[Writer, str], str]


def on(body: Pointwise, *, linear: bool = False) -> Write:
    """Apply `body` to an input, or to a linear layer of it."""

    def write(w: Writer) -> str:
        x = w.input("x", "B", "S", WIDTH)
        return body(w, w.linear(x, WIDTH, WIDTH) if linear else x)

    return write


# ---- GELU ----


def _one_plus_erf(w: Writer, x: str, constant: float = math.sqrt(2), *, mul: bool = False) -> str:
    number = w.number(1 / constant if mul else constant)
    inner = w.mul(x, number) if mul else w.div(x, number)
    return w.add(w.op("Erf", inner), w.number(1))


def gelu_torch(w: Writer, x: str) -> str:
    """TorchScript: x * (1 + erf(x / sqrt 2)) * 0.5."""
    return w.mul(w.mul(x, _one_plus_erf(w, x)), w.number(0.5))


def gelu_half_first(w: Writer, x: str) -> str:
    """Keras and TensorFlow: 0.5 * x * (1 + erf(x / sqrt 2))."""
    return w.mul(w.mul(w.number(0.5), x), _one_plus_erf(w, x))


def gelu_halved(w: Writer, x: str) -> str:
    """(x / 2) * (1 + erf(x / sqrt 2))."""
    return w.mul(w.div(x, w.number(2)), _one_plus_erf(w, x))


def gelu_digits(w: Writer, x: str) -> str:
    """Megatron: 0.5 * x * (1 + erf(x / 1.41421))."""
    return w.mul(w.mul(x, w.number(0.5)), _one_plus_erf(w, x, 1.41421))


def gelu_reciprocal(w: Writer, x: str) -> str:
    """JAX: x * 0.5 * (1 + erf(x * 0.70710678))."""
    return w.mul(x, w.mul(w.number(0.5), _one_plus_erf(w, x, mul=True)))


def gelu_four_digits(w: Writer, x: str) -> str:
    """With 0.7071."""
    return w.mul(w.mul(x, w.number(0.5)), _one_plus_erf(w, x, 1 / 0.7071, mul=True))


def gelu_cdf(w: Writer, x: str) -> str:
    """Old BERT: cdf = 0.5 * (1 + erf(x / sqrt(2))); x * cdf, the root in the graph."""
    root = w.op("Sqrt", w.number(2))
    erf = w.op("Erf", w.div(x, root))
    return w.mul(x, w.mul(w.number(0.5), w.add(w.number(1), erf)))


def gelu_distributed(w: Writer, x: str) -> str:
    """x * (0.5 + 0.5 * erf(x / sqrt 2))."""
    erf = w.op("Erf", w.div(x, w.number(math.sqrt(2))))
    return w.mul(x, w.add(w.number(0.5), w.mul(erf, w.number(0.5))))


def gelu_erfc(w: Writer, x: str) -> str:
    """JAX: x * 0.5 * erfc(-x / sqrt 2), with erfc(z) = 1 - erf(z)."""
    erf = w.op("Erf", w.div(w.op("Neg", x), w.number(math.sqrt(2))))
    return w.mul(w.mul(x, w.number(0.5)), w.sub(w.number(1), erf))


def gelu_in_float32(w: Writer, x: str) -> str:
    """Of a float16 value, between casts."""
    y = gelu_torch(w, w.cast(w.cast(x, np.float16), np.float32))
    return w.cast(y, np.float16)


def _tanh_inner(w: Writer, x: str, cube: str, root: float = math.sqrt(2 / math.pi)) -> str:
    return w.op("Tanh", w.mul(w.number(root), w.add(x, w.mul(w.number(0.044715), cube))))


def tanh_pow(w: Writer, x: str) -> str:
    """GPT-2: 0.5 * x * (1 + tanh(0.79788 * (x + 0.044715 * x**3)))."""
    tanh = _tanh_inner(w, x, w.op("Pow", x, w.number(3)))
    return w.mul(w.mul(w.number(0.5), x), w.add(w.number(1), tanh))


def tanh_cube(w: Writer, x: str) -> str:
    """With x * x * x."""
    tanh = _tanh_inner(w, x, w.mul(w.mul(x, x), x))
    return w.mul(w.mul(w.number(0.5), x), w.add(tanh, w.number(1)))


def tanh_fast(w: Writer, x: str) -> str:
    """transformers' gelu_fast: tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))."""
    square = w.mul(w.mul(w.number(0.044715), x), x)
    inner = w.mul(w.mul(x, w.number(0.7978845608)), w.add(w.number(1), square))
    return w.mul(w.mul(w.number(0.5), x), w.add(w.number(1), w.op("Tanh", inner)))


def tanh_cdf(w: Writer, x: str) -> str:
    """Old BERT and Keras: x * (0.5 * (1 + tanh(sqrt(2 / pi) * ...))), the root in the graph."""
    root = w.op("Sqrt", w.div(w.number(2), w.number(math.pi)))
    cube = w.op("Pow", x, w.number(3))
    tanh = w.op("Tanh", w.mul(root, w.add(x, w.mul(w.number(0.044715), cube))))
    return w.mul(x, w.mul(w.number(0.5), w.add(w.number(1), tanh)))


def tanh_as_sigmoid(w: Writer, x: str) -> str:
    """XLA: x * sigmoid(2 * 0.79788 * (x + 0.044715 x^3))."""
    inner = w.add(x, w.mul(w.number(0.044715), w.op("Pow", x, w.number(3))))
    return w.mul(x, w.op("Sigmoid", w.mul(inner, w.number(2 * math.sqrt(2 / math.pi)))))


def quick_gelu(w: Writer, x: str) -> str:
    """CLIP: x * sigmoid(1.702 * x)."""
    return w.mul(x, w.op("Sigmoid", w.mul(w.number(1.702), x)))


def quick_gelu_exp(w: Writer, x: str) -> str:
    """x / (1 + exp(-1.702 * x))."""
    return w.div(x, w.add(w.number(1), w.op("Exp", w.mul(x, w.number(-1.702)))))


# ---- SiLU, Mish, sigmoid ----


def silu(w: Writer, x: str) -> str:
    """x * sigmoid(x)."""
    return w.mul(x, w.op("Sigmoid", x))


def silu_exp(w: Writer, x: str) -> str:
    """x / (1 + exp(-x))."""
    return w.div(x, w.add(w.number(1), w.op("Exp", w.op("Neg", x))))


def silu_tanh(w: Writer, x: str) -> str:
    """x * 0.5 * (1 + tanh(x / 2))."""
    tanh = w.op("Tanh", w.mul(x, w.number(0.5)))
    return w.mul(x, w.mul(w.number(0.5), w.add(tanh, w.number(1))))


def silu_reciprocal(w: Writer, x: str) -> str:
    """x * 1 / (1 + exp(-x))."""
    one = w.add(w.op("Exp", w.mul(x, w.number(-1))), w.number(1))
    return w.mul(x, w.op("Reciprocal", one))


def mish(w: Writer, x: str) -> str:
    """x * tanh(softplus(x))."""
    return w.mul(x, w.op("Tanh", w.op("Softplus", x)))


def mish_log(w: Writer, x: str) -> str:
    """Darknet: x * tanh(log(1 + exp(x)))."""
    soft = w.op("Log", w.add(w.op("Exp", x), w.number(1)))
    return w.mul(w.op("Tanh", soft), x)


def sigmoid_exp(w: Writer, x: str) -> str:
    """1 / (1 + exp(-x))."""
    return w.div(w.number(1), w.add(w.number(1), w.op("Exp", w.op("Neg", x))))


def sigmoid_reciprocal(w: Writer, x: str) -> str:
    """Reciprocal(1 + exp(-x))."""
    return w.op("Reciprocal", w.add(w.op("Exp", w.op("Neg", x)), w.number(1)))


def sigmoid_tanh(w: Writer, x: str) -> str:
    """0.5 + 0.5 * tanh(0.5 * x)."""
    tanh = w.op("Tanh", w.mul(w.number(0.5), x))
    return w.add(w.number(0.5), w.mul(tanh, w.number(0.5)))


def _act(
    op: str, wanted: set[str] | frozenset[str], gone: set[str], *bodies: Pointwise, count: int = 2
) -> tuple[Formula, ...]:
    return tuple(
        Formula(
            op, body.__name__, on(body, linear=i % 3 == 2), frozenset(wanted), frozenset(gone),
            manners=count,
        )
        for i, body in enumerate(bodies)
    )  # fmt: skip


FORMULAS: tuple[Formula, ...] = (
    *_act(
        "GELU erf", GELU, {"Erf", "Div"},
        gelu_torch, gelu_half_first, gelu_halved, gelu_digits, gelu_reciprocal,
        gelu_four_digits, gelu_cdf, gelu_distributed, gelu_erfc, gelu_in_float32,
    ),
    *_act(
        "GELU tanh", GELU, {"Tanh", "Pow", "Sigmoid"},
        tanh_pow, tanh_cube, tanh_fast, tanh_cdf, tanh_as_sigmoid,
    ),
    *_act("QuickGELU", {"com.microsoft::QuickGelu"}, {"Sigmoid"}, quick_gelu, quick_gelu_exp),
    *_act("SiLU", SILU, {"Sigmoid", "Exp"}, silu, silu_exp, silu_tanh, silu_reciprocal),
    *_act("Mish", {"Mish"}, {"Tanh", "Softplus", "Exp"}, mish, mish_log),
    *_act(
        "Sigmoid", {"Sigmoid"}, {"Exp", "Reciprocal", "Tanh"},
        sigmoid_exp, sigmoid_reciprocal, sigmoid_tanh,
    ),
)  # fmt: skip

"""Activations made of pieces, softplus, and gates."""

from __future__ import annotations

import numpy as np

from tests.spelling.activations import WIDTH, _act, gelu_torch, silu, silu_exp, tanh_pow
from tests.spelling.case import GELU, SILU, Formula
from tests.spelling.writer import Writer


def hard_swish_clip(w: Writer, x: str) -> str:
    """torch: x * clip(x + 3, 0, 6) / 6."""
    return w.div(w.mul(x, w.clip(w.add(x, w.number(3)), 0, 6)), w.number(6))


def hard_swish_sixth(w: Writer, x: str) -> str:
    """TensorFlow: x * (relu6(x + 3) * 0.16666667)."""
    relu6 = w.minimum(w.op("Relu", w.add(x, w.number(3))), w.number(6))
    return w.mul(x, w.mul(relu6, w.number(1 / 6)))


def hard_swish_sigmoid(w: Writer, x: str) -> str:
    """x * HardSigmoid(x), alpha 1/6."""
    return w.mul(w.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), x)


def hard_sigmoid_clip(w: Writer, x: str) -> str:
    """torch: clip(x + 3, 0, 6) / 6."""
    return w.div(w.clip(w.add(w.number(3), x), 0, 6), w.number(6))


def hard_sigmoid_keras(w: Writer, x: str) -> str:
    """Keras 2: clip(0.2 * x + 0.5, 0, 1)."""
    return w.clip(w.add(w.mul(x, w.number(0.2)), w.number(0.5)), 0, 1)


def hard_sigmoid_min_max(w: Writer, x: str) -> str:
    """max(0, min(1, x / 6 + 0.5))."""
    line = w.add(w.div(x, w.number(6)), w.number(0.5))
    return w.maximum(w.number(0), w.minimum(w.number(1), line))


def softplus_log(w: Writer, x: str) -> str:
    """log(1 + exp(x))."""
    return w.op("Log", w.add(w.number(1), w.op("Exp", x)))


def softplus_stable(w: Writer, x: str) -> str:
    """max(x, 0) + log(1 + exp(-abs(x)))."""
    decay = w.op("Exp", w.op("Neg", w.op("Abs", x)))
    return w.add(w.op("Relu", x), w.op("Log", w.add(decay, w.number(1))))


def _where_positive(w: Writer, x: str, otherwise: str) -> str:
    return w.op("Where", w.op("Greater", x, w.number(0)), x, otherwise)


def elu_where(w: Writer, x: str) -> str:
    """where(x > 0, x, exp(x) - 1)."""
    return _where_positive(w, x, w.sub(w.op("Exp", x), w.number(1)))


def elu_parts(w: Writer, x: str) -> str:
    """relu(x) + 0.5 * (exp(min(x, 0)) - 1)."""
    low = w.sub(w.op("Exp", w.minimum(x, w.number(0))), w.number(1))
    return w.add(w.op("Relu", x), w.mul(w.number(0.5), low))


def leaky_max(w: Writer, x: str) -> str:
    """max(x, 0.2 * x)."""
    return w.maximum(x, w.mul(w.number(0.2), x))


def leaky_where(w: Writer, x: str) -> str:
    """where(x > 0, x, 0.01 * x)."""
    return _where_positive(w, x, w.mul(x, w.number(0.01)))


def leaky_parts(w: Writer, x: str) -> str:
    """relu(x) - 0.1 * relu(-x)."""
    negative = w.op("Relu", w.op("Neg", x))
    return w.sub(w.op("Relu", x), w.mul(negative, w.number(0.1)))


def relu6_min_max(w: Writer, x: str) -> str:
    """min(max(x, 0), 6)."""
    return w.minimum(w.maximum(x, w.number(0)), w.number(6))


def relu6_relu(w: Writer, x: str) -> str:
    """min(relu(x), 6)."""
    return w.minimum(w.op("Relu", x), w.number(6))


def relu6_clips(w: Writer, x: str) -> str:
    """clip(relu(x), -inf, 6)."""
    return w.clip(w.op("Relu", x), None, 6)


def squared_relu_pow(w: Writer, x: str) -> str:
    """relu(x) ** 2."""
    return w.op("Pow", w.op("Relu", x), w.number(2))


def squared_relu_max(w: Writer, x: str) -> str:
    """max(x, 0) * max(x, 0), as one value."""
    top = w.maximum(x, w.number(0))
    return w.mul(top, top)


def selu_where(w: Writer, x: str) -> str:
    """scale * where(x > 0, x, alpha * (exp(x) - 1))."""
    low = w.mul(w.number(1.6732632), w.sub(w.op("Exp", x), w.number(1)))
    return w.mul(w.number(1.0507010), _where_positive(w, x, low))


def softsign(w: Writer, x: str) -> str:
    """x / (1 + abs(x))."""
    return w.div(x, w.add(w.number(1), w.op("Abs", x)))


# ---- gates ----


def swiglu_two(w: Writer) -> str:
    """Llama: silu(x W) * (x V)."""
    x = w.input("x", "B", "S", WIDTH)
    gate = silu(w, w.linear(x, WIDTH, 24, bias=False))
    return w.op("MatMul", w.mul(gate, w.linear(x, WIDTH, 24, bias=False)), w.weight(24, WIDTH))


def swiglu_chunk(w: Writer) -> str:
    """Phi-3 and GLM: one product, split into gate and value."""
    x = w.input("x", "B", "S", WIDTH)
    gate, up = w.split(w.linear(x, WIDTH, 48, bias=False), -1, 24, 24)
    return w.op("MatMul", w.mul(up, silu_exp(w, gate)), w.weight(24, WIDTH))


def geglu_chunk(w: Writer) -> str:
    """Stable Diffusion: value, gate = split(x W); value * gelu(gate)."""
    x = w.input("x", "B", "S", WIDTH)
    value, gate = w.split(w.linear(x, WIDTH, 48), -1, 24, 24)
    return w.mul(value, gelu_torch(w, gate))


def geglu_tanh(w: Writer) -> str:
    """T5 v1.1 and Gemma: gelu_new(x W) * (x V)."""
    x = w.input("x", "B", "S", WIDTH)
    gate = tanh_pow(w, w.linear(x, WIDTH, 24, bias=False))
    return w.mul(gate, w.linear(x, WIDTH, 24, bias=False))


def bias_gelu(w: Writer) -> str:
    """A bias of one axis before GELU."""
    x = w.input("x", "B", "S", WIDTH)
    return gelu_torch(w, w.add(x, w.weight(WIDTH)))


def silu_float16(w: Writer) -> str:
    """SiLU of float16 values in float32, as autocast writes it."""
    x = w.input("x", "B", "S", WIDTH, dtype=np.float16)
    return w.cast(silu(w, w.cast(x, np.float32)), np.float16)


def _gate(op: str, name: str, write: object, wanted: frozenset[str], gone: set[str]) -> Formula:
    assert callable(write)
    return Formula(op, name, write, wanted, frozenset(gone))


FORMULAS: tuple[Formula, ...] = (
    *_act(
        "HardSwish", {"HardSwish"}, {"Clip", "Div", "HardSigmoid", "Min", "Relu"},
        hard_swish_clip, hard_swish_sixth, hard_swish_sigmoid,
    ),
    *_act(
        "HardSigmoid", {"HardSigmoid"}, {"Clip", "Min", "Max", "Div"},
        hard_sigmoid_clip, hard_sigmoid_keras, hard_sigmoid_min_max,
    ),
    *_act("Softplus", {"Softplus"}, {"Exp", "Log"}, softplus_log, softplus_stable),
    *_act("ELU", {"Elu"}, {"Exp", "Where", "Relu"}, elu_where, elu_parts),
    *_act(
        "LeakyReLU", {"LeakyRelu"}, {"Max", "Where", "Relu"}, leaky_max, leaky_where, leaky_parts
    ),
    *_act(
        "ReLU6", {"Clip"}, {"Min", "Max", "Relu"}, relu6_min_max, relu6_relu, relu6_clips
    ),
    *_act("SquaredReLU", {"Relu"}, {"Pow", "Max"}, squared_relu_pow, squared_relu_max),
    *_act("SELU", {"Selu"}, {"Exp", "Where"}, selu_where, count=1),
    *_act("Softsign", {"Softsign"}, {"Abs", "Div"}, softsign, count=1),
    _gate("BiasGelu", "bias", bias_gelu, GELU, {"Erf", "Div"}),
    _gate("SwiGLU", "two products", swiglu_two, SILU, {"Sigmoid"}),
    _gate("SwiGLU", "one product", swiglu_chunk, SILU, {"Exp"}),
    _gate("SwiGLU", "float16", silu_float16, SILU, {"Sigmoid"}),
    _gate("GeGLU", "one product", geglu_chunk, GELU, {"Erf"}),
    _gate("GeGLU", "tanh", geglu_tanh, GELU, {"Tanh"}),
)  # fmt: skip

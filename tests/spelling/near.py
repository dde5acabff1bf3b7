"""Near misses among activations: each looks like one and is not."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.spelling.activations import WIDTH, on
from tests.spelling.case import GELU, SILU, NearMiss
from tests.spelling.channels import CHANNELS
from tests.spelling.writer import Writer

Pointwise = Callable[[Writer, str], str]
ROOT = math.sqrt(2)


# ---- activations ----


def _erf_gelu(
    *, scale: float = 0.5, root: float = ROOT, one: float = 1.0, sign: float = 1.0
) -> Pointwise:
    def body(w: Writer, x: str) -> str:
        erf = w.op("Erf", w.div(x, w.number(root)))
        erf = erf if sign == 1 else w.op("Neg", erf)
        return w.mul(w.mul(x, w.add(erf, w.number(one))), w.number(scale))

    return body


def _tanh_gelu(*, cube: float = 0.044715, root: float = 0.7978846, power: float = 3) -> Pointwise:
    def body(w: Writer, x: str) -> str:
        inner = w.add(x, w.mul(w.number(cube), w.op("Pow", x, w.number(power))))
        tanh = w.op("Tanh", w.mul(w.number(root), inner))
        return w.mul(w.mul(w.number(0.5), x), w.add(w.number(1), tanh))

    return body


def _gelu_of_two(w: Writer) -> str:
    """x * (1 + erf(z / sqrt 2)) / 2 of two values."""
    x, z = w.input("x", "B", "S", WIDTH), w.input("z", "B", "S", WIDTH)
    erf = w.op("Erf", w.div(z, w.number(ROOT)))
    return w.mul(w.mul(x, w.add(erf, w.number(1))), w.number(0.5))


def _gelu_kept(w: Writer) -> tuple[str, str]:
    """GELU of which the erf is a result too: it may be fused, the erf must stay right."""
    x = w.input("x", "B", "S", WIDTH)
    erf = w.op("Erf", w.div(x, w.number(ROOT)))
    return w.mul(w.mul(x, w.add(erf, w.number(1))), w.number(0.5)), erf


def _silu_of_two(w: Writer) -> str:
    """x * sigmoid(z)."""
    x, z = w.input("x", "B", "S", WIDTH), w.input("z", "B", "S", WIDTH)
    return w.mul(x, w.op("Sigmoid", z))


def _silu_broadcast(w: Writer) -> str:
    """Squeeze and excitation: x [B, C, X, Y] * sigmoid of a pooled value."""
    x = w.input("x", "B", CHANNELS, "X", "Y")
    return w.mul(x, w.op("Sigmoid", w.reduce("ReduceMean", x, 2, 3)))


def _not_silu_exp(w: Writer, x: str) -> str:
    """x / (1 + 2 exp(-x)), which is x * sigmoid(x - log 2)."""
    exp = w.op("Exp", w.op("Neg", x))
    return w.div(x, w.add(w.number(1), w.mul(exp, w.number(2))))


def _sigmoid_two(w: Writer, x: str) -> str:
    """1 / (2 + exp(-x))."""
    return w.div(w.number(1), w.add(w.number(2), w.op("Exp", w.op("Neg", x))))


def _mish_like(w: Writer, x: str) -> str:
    """x * tanh(log(2 + exp(x)))."""
    return w.mul(x, w.op("Tanh", w.op("Log", w.add(w.number(2), w.op("Exp", x)))))


def _mish_sigmoid(w: Writer, x: str) -> str:
    """x * sigmoid(softplus(x))."""
    return w.mul(x, w.op("Sigmoid", w.op("Softplus", x)))


def _hard_swish(shift: float, top: float, divisor: float) -> Pointwise:
    def body(w: Writer, x: str) -> str:
        return w.div(w.mul(x, w.clip(w.add(x, w.number(shift)), 0, top)), w.number(divisor))

    return body


def _softplus_two(w: Writer, x: str) -> str:
    """log(2 + exp(x))."""
    return w.op("Log", w.add(w.number(2), w.op("Exp", x)))


def _elu_without_one(w: Writer, x: str) -> str:
    """where(x > 0, x, exp(x))."""
    return w.op("Where", w.op("Greater", x, w.number(0)), x, w.op("Exp", x))


def _elu_at_one(w: Writer, x: str) -> str:
    """where(x > 1, x, exp(x) - 1)."""
    low = w.sub(w.op("Exp", x), w.number(1))
    return w.op("Where", w.op("Greater", x, w.number(1)), x, low)


def _leaky_min(w: Writer, x: str) -> str:
    """min(x, 0.2 x): the other side leaks, by a factor above one."""
    return w.minimum(x, w.mul(w.number(0.2), x))


def _leaky_vector(w: Writer, x: str) -> str:
    """max(x, a x) with a slope for each channel."""
    return w.maximum(x, w.op("Mul", x, w.weight(WIDTH)))


def _clip_swapped(w: Writer, x: str) -> str:
    """max(min(x, 0), 6), which is 6."""
    return w.maximum(w.minimum(x, w.number(0)), w.number(6))


def _relu6_of_two(w: Writer) -> str:
    """min(relu(x), z)."""
    x, z = w.input("x", "B", "S", WIDTH), w.input("z", "B", "S", WIDTH)
    return w.minimum(w.op("Relu", x), z)


def _near(op: str, name: str, body: Pointwise, never: frozenset[str]) -> NearMiss:
    return NearMiss(op, name, on(body), never)


MISSES = (
    _near("GELU erf", "factor 0.6", _erf_gelu(scale=0.6), GELU),
    _near("GELU erf", "root of 3", _erf_gelu(root=math.sqrt(3)), GELU),
    _near("GELU erf", "two plus erf", _erf_gelu(one=2.0), GELU),
    _near("GELU erf", "one minus erf", _erf_gelu(sign=-1.0), GELU),
    NearMiss("GELU erf", "of two values", _gelu_of_two, GELU),
    NearMiss("GELU erf", "erf read", _gelu_kept, frozenset({"Tanh"})),
    _near("GELU tanh", "cube 0.05", _tanh_gelu(cube=0.05), GELU),
    _near("GELU tanh", "root 0.85", _tanh_gelu(root=0.85), GELU),
    _near("GELU tanh", "square", _tanh_gelu(power=2), GELU),
    NearMiss("SiLU", "of two values", _silu_of_two, SILU | GELU),
    NearMiss("SiLU", "pooled", _silu_broadcast, SILU | GELU),
    _near("SiLU", "twice the exponential", _not_silu_exp, SILU | {"Mish"}),
    _near("Sigmoid", "two", _sigmoid_two, frozenset({"Sigmoid"})),
    _near("Mish", "two", _mish_like, frozenset({"Mish"})),
    _near("Mish", "sigmoid", _mish_sigmoid, frozenset({"Mish"}) | SILU),
    _near("HardSwish", "two sevenths", _hard_swish(3, 6, 7), frozenset({"HardSwish"})),
    _near("HardSwish", "shift 2", _hard_swish(2, 6, 6), frozenset({"HardSwish"})),
    _near("HardSwish", "top 5", _hard_swish(3, 5, 6), frozenset({"HardSwish"})),
    _near("Softplus", "two", _softplus_two, frozenset({"Softplus"})),
    _near("ELU", "exponential", _elu_without_one, frozenset({"Elu", "Celu", "Selu"})),
    _near("ELU", "at one", _elu_at_one, frozenset({"Elu", "Celu", "Selu"})),
    _near("LeakyReLU", "minimum", _leaky_min, frozenset({"Relu", "Clip"})),
    _near("LeakyReLU", "of channels", _leaky_vector, frozenset({"LeakyRelu", "Relu"})),
    _near("ReLU6", "swapped", _clip_swapped, frozenset({"Relu"})),
    NearMiss("ReLU6", "of two values", _relu6_of_two, frozenset({"Clip"})),
)

"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ortkit.kernels.region import vectormath
from ortkit.kernels.region.dtypes import FLOATS, INTEGERS
from ortkit.kernels.region.ops_arithmetic import REALS, clip
from ortkit.kernels.region.pointwise import (
    Attributes,
    PointwiseOp,
    alike,
    binary,
    number,
    op,
    unary,
)
from ortkit.refusal import Refused

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr


def _gelu_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    if attributes["approximate"] not in ("none", "tanh"):
        return Refused(f"approximate {attributes['approximate']!r}")
    return alike(FLOATS, 1)(dtypes, attributes)


def _gelu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    is_tanh = attributes["approximate"] == "tanh"
    return (vectormath.gelu_tanh if is_tanh else vectormath.gelu)(e, operands[0])


def _hard_sigmoid(e: Emitter, x: Expr, alpha: float, beta: float) -> Expr:
    dtype = e.dtype(x)
    line = e.share(x * vectormath.factor(e, alpha, dtype) + e.constant(beta, dtype))
    return clip(e, line, e.constant(0.0, dtype), e.constant(1.0, dtype))


def _hard_swish(e: Emitter, x: Expr) -> Expr:
    dtype = e.dtype(x)
    # x + 3 is exact where the result comes near 0; x / 6 + 0.5 would be rounded there.
    line = clip(
        e, e.share(x + e.constant(3.0, dtype)), e.constant(0.0, dtype), e.constant(6.0, dtype)
    )
    return x * (line * vectormath.factor(e, 1 / 6, dtype))


def _zero(e: Emitter, x: Expr) -> Expr:
    return e.constant(0, e.dtype(x))


def _relu(e: Emitter, x: Expr) -> Expr:
    return e.select(x < _zero(e, x), _zero(e, x), x)


def _slope(e: Emitter, x: Expr, slope: Expr) -> Expr:
    return e.select(x < _zero(e, x), e.multiply(x, slope), x)


def _leaky_relu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,) = operands
    return _slope(e, x, vectormath.factor(e, number(attributes, "alpha"), e.dtype(x)))


def _exponential(e: Emitter, x: Expr, alpha: float, scale: float = 1.0) -> Expr:
    """Return alpha (e^(scale x) - 1) below 0 and x above."""
    minus = e.share(x * e.f32(scale)) if scale != 1.0 else x
    return e.select(x < e.f32(0.0), vectormath.factor(e, alpha) * vectormath.expm1(e, minus), x)


def _elu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    return _exponential(e, operands[0], number(attributes, "alpha"))


def _selu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,), alpha = operands, number(attributes, "alpha")
    return vectormath.factor(e, number(attributes, "gamma")) * e.share(_exponential(e, x, alpha))


def _celu_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    if number(attributes, "alpha") == 0.0:
        return Refused("alpha 0")
    return alike(FLOATS, 1)(dtypes, attributes)


def _celu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,), alpha = operands, number(attributes, "alpha")
    curve = e.share(e.f32(alpha) * vectormath.expm1(e, e.share(x / e.f32(alpha))))
    # As the standard has it, for a negative alpha too: max(0, x) + min(0, curve).
    zero = e.f32(0.0)
    return _relu(e, x) + e.select(curve > zero, zero, curve)


def _thresholded_relu(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,) = operands
    return e.select(x > e.constant(number(attributes, "alpha"), e.dtype(x)), x, _zero(e, x))


def _shrink(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,), dtype = operands, e.dtype(operands[0])
    bias = e.constant(number(attributes, "bias"), dtype)
    bound = number(attributes, "lambd")
    high, low = e.constant(bound, dtype), e.constant(-bound, dtype)
    return e.select(x < low, x + bias, e.select(x > high, x - bias, _zero(e, x)))


ACTIVATIONS: Mapping[str, PointwiseOp] = {
    "Celu": op(14, _celu_type, _celu, alpha=1.0),
    "Elu": op(10, alike(FLOATS, 1), _elu, alpha=1.0),
    "Gelu": op(13, _gelu_type, _gelu, approximate="none"),
    "HardSigmoid": op(
        2,
        alike(REALS, 1),
        lambda e, at, x: _hard_sigmoid(e, x[0], number(at, "alpha"), number(at, "beta")),
        alpha=0.2,
        beta=0.5,
    ),
    "HardSwish": unary(3, REALS, _hard_swish),
    "LeakyRelu": op(2, alike(REALS, 1), _leaky_relu, alpha=0.01),
    "Mish": unary(14, FLOATS, vectormath.mish),
    "PRelu": binary(2, (*REALS, *INTEGERS), _slope),
    "Relu": unary(1, (*REALS, *INTEGERS), _relu),
    "Selu": op(12, alike(FLOATS, 1), _selu, alpha=1.6732632423543772, gamma=1.0507009873554805),
    "Shrink": op(2, alike(REALS, 1), _shrink, bias=0.0, lambd=0.5),
    "Sigmoid": unary(12, FLOATS, vectormath.sigmoid),
    "Softplus": unary(16, FLOATS, vectormath.softplus),
    "Softsign": unary(10, REALS, lambda e, x: x / (e.constant(1.0, e.dtype(x)) + e.absolute(x))),
    "Swish": op(
        12,
        alike(FLOATS, 1),
        lambda e, at, x: vectormath.silu(e, x[0], number(at, "alpha")),
        alpha=1.0,
    ),
    "ThresholdedRelu": op(1, alike(REALS, 1), _thresholded_relu, alpha=1.0),
}

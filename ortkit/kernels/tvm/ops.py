"""The pointwise ONNX operators that kernels may contain: types, cost, and how each is written.

Nothing here imports tvm: an operator is written with the emitter it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ortkit.kernels.backend import Refused
from ortkit.kernels.tvm import vectormath

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Emitter, Expr

Attributes: TypeAlias = Mapping[str, float | int | str]
TypeRule: TypeAlias = Callable[[Sequence[str], Attributes], "str | Refused"]
Write: TypeAlias = "Callable[[Emitter, Attributes, Sequence[Expr]], Expr]"

FLOATS = ("float32",)
NUMBERS = ("float32", "int32", "int64")
DTYPES = (*NUMBERS, "bool")

_CAST_TO = {1: "float32", 6: "int32", 7: "int64", 9: "bool"}


@dataclass(frozen=True)
class PointwiseOp:
    """One operator.

    Args:
        flops: Cost of one element in simple vector operations, about 1/32 ns (Zen 4, AVX-512).
        result: The result's dtype from the operands' dtypes, or why there is none.
        write: Emits it; the operands are shared values or constants.
        attributes: The attributes it knows and their defaults; any other attribute is refused.
    """

    flops: int
    result: TypeRule
    write: Write
    attributes: Mapping[str, float | int | str]


def _alike(allowed: tuple[str, ...], count: int | None, result: str | None = None) -> TypeRule:
    """Expect `count` operands (None: one or more) of one dtype out of `allowed`."""

    def rule(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
        if len(dtypes) != count and (count is not None or not dtypes):
            return Refused(f"{len(dtypes)} operands")
        if len(set(dtypes)) > 1 or dtypes[0] not in allowed:
            return Refused(f"operands of type {', '.join(dtypes)}")
        return result or dtypes[0]

    return rule


def _where_type(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
    if len(dtypes) != 3 or dtypes[0] != "bool" or dtypes[1] != dtypes[2]:
        return Refused(f"operands of type {', '.join(dtypes)}")
    return dtypes[1]


def _cast_type(_dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    to = attributes["to"]
    if not isinstance(to, int) or to not in _CAST_TO:
        return Refused(f"conversion to element type {to}")
    return _CAST_TO[to]


def _cast(e: Emitter, attributes: Attributes, x: Expr) -> Expr:
    source, to = e.dtype(x), _CAST_TO[int(attributes["to"])]
    if source == to:
        return x
    if source == "bool":
        return e.select(x, e.constant(1, to), e.constant(0, to))
    if to == "bool":
        return e.not_equal(x, e.constant(0, source))
    return e.cast(x, to)


def _clip(e: Emitter, x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    # NaN fails both comparisons and stays, as ONNX Runtime has it.
    if low is not None:
        x = e.share(e.select(x < low, low, x))
    return x if high is None else e.select(x > high, high, x)


def _maximum(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.select(e.either(a > b, e.is_nan(a)), a, b)


def _minimum(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.select(e.either(a < b, e.is_nan(a)), a, b)


def _fold(
    step: Callable[[Emitter, Expr, Expr], Expr],
) -> Write:
    def write(e: Emitter, _attributes: Attributes, operands: Sequence[Expr]) -> Expr:
        result = operands[0]
        for operand in operands[1:]:
            result = e.share(step(e, result, operand))
        return result

    return write


def _gelu(e: Emitter, attributes: Attributes, x: Expr) -> Expr:
    if attributes["approximate"] == "tanh":
        cubic = e.share(x + e.f32(0.044715) * (x * (x * x)))
        inner = vectormath.tanh(e, e.share(e.f32(math.sqrt(2 / math.pi)) * cubic))
    else:
        inner = vectormath.erf(e, e.share(x * e.f32(math.sqrt(0.5))))
    return e.f32(0.5) * x * (e.f32(1.0) + inner)


def _hard_sigmoid(e: Emitter, alpha: float, beta: float, x: Expr) -> Expr:
    return _clip(e, e.share(x * e.f32(alpha) + e.f32(beta)), e.f32(0.0), e.f32(1.0))


def _sign(e: Emitter, x: Expr) -> Expr:
    zero, one = e.constant(0, e.dtype(x)), e.constant(1, e.dtype(x))
    return e.select(x > zero, one, e.select(x < zero, e.negative(one), x))


def _relu(e: Emitter, x: Expr) -> Expr:
    zero = e.constant(0, e.dtype(x))
    return e.select(x < zero, zero, x)


def _op(
    flops: int, result: TypeRule, write: Write, **attributes: float | int | str
) -> PointwiseOp:
    return PointwiseOp(flops, result, write, attributes)


def _math(flops: int, function: Callable[[Emitter, Expr], Expr]) -> PointwiseOp:
    return _op(flops, _alike(FLOATS, 1), lambda e, _, x: function(e, x[0]))


def _compare(write: Callable[[Emitter, Expr, Expr], Expr]) -> PointwiseOp:
    return _op(1, _alike(NUMBERS, 2, "bool"), lambda e, _, x: write(e, x[0], x[1]))


def _logic(count: int, write: Callable[[Emitter, Sequence[Expr]], Expr]) -> PointwiseOp:
    return _op(1, _alike(("bool",), count), lambda e, _, x: write(e, x))


def _arithmetic(flops: int, write: Callable[[Expr, Expr], Expr]) -> PointwiseOp:
    return _op(flops, _alike(NUMBERS, 2), lambda _e, _, x: write(x[0], x[1]))


POINTWISE_OPS: dict[str, PointwiseOp] = {
    "Abs": _op(1, _alike(NUMBERS, 1), lambda e, _, x: e.absolute(x[0])),
    "Add": _arithmetic(1, lambda a, b: a + b),
    "And": _logic(2, lambda e, x: e.both(x[0], x[1])),
    "Cast": _op(1, _cast_type, lambda e, at, x: _cast(e, at, x[0]), to=0, saturate=1),
    "Ceil": _math(1, lambda e, x: e.ceil(x)),
    "Clip": _op(2, _alike(NUMBERS, None), lambda e, _, x: _clip(e, x[0], x[1], x[2])),
    "Div": _op(6, _alike(FLOATS, 2), lambda _e, _, x: x[0] / x[1]),
    "Equal": _compare(lambda e, a, b: e.equal(a, b)),
    "Erf": _math(20, vectormath.erf),
    "Exp": _math(10, vectormath.exp),
    "Floor": _math(1, lambda e, x: e.floor(x)),
    "Gelu": _op(24, _alike(FLOATS, 1), lambda e, at, x: _gelu(e, at, x[0]), approximate="none"),
    "Greater": _compare(lambda _e, a, b: a > b),
    "GreaterOrEqual": _compare(lambda _e, a, b: a >= b),
    "HardSigmoid": _op(
        4,
        _alike(FLOATS, 1),
        lambda e, at, x: _hard_sigmoid(e, float(at["alpha"]), float(at["beta"]), x[0]),
        alpha=0.2,
        beta=0.5,
    ),
    "HardSwish": _math(5, lambda e, x: x * _hard_sigmoid(e, 1 / 6, 0.5, x)),
    "Identity": _op(0, _alike(DTYPES, 1), lambda _e, _, x: x[0]),
    "IsNaN": _op(1, _alike(FLOATS, 1, "bool"), lambda e, _, x: e.is_nan(x[0])),
    "LeakyRelu": _op(
        2,
        _alike(FLOATS, 1),
        lambda e, at, x: e.select(x[0] < e.f32(0.0), x[0] * e.f32(float(at["alpha"])), x[0]),
        alpha=0.01,
    ),
    "Less": _compare(lambda _e, a, b: a < b),
    "LessOrEqual": _compare(lambda _e, a, b: a <= b),
    "Log": _math(14, vectormath.log),
    "Max": _op(2, _alike(NUMBERS, None), _fold(_maximum)),
    "Min": _op(2, _alike(NUMBERS, None), _fold(_minimum)),
    "Mul": _arithmetic(1, lambda a, b: a * b),
    "Neg": _op(1, _alike(NUMBERS, 1), lambda e, _, x: e.negative(x[0])),
    "Not": _logic(1, lambda e, x: e.invert(x[0])),
    "Or": _logic(2, lambda e, x: e.either(x[0], x[1])),
    "Reciprocal": _math(6, lambda e, x: e.f32(1.0) / x),
    "Relu": _op(1, _alike(NUMBERS, 1), lambda e, _, x: _relu(e, x[0])),
    "Round": _math(1, lambda e, x: e.round_half_even(x)),
    "Sigmoid": _math(14, vectormath.sigmoid),
    "Sign": _op(2, _alike(NUMBERS, 1), lambda e, _, x: _sign(e, x[0])),
    "Sqrt": _math(6, lambda e, x: e.sqrt(x)),
    "Sub": _arithmetic(1, lambda a, b: a - b),
    "Sum": _op(2, _alike(FLOATS, None), _fold(lambda _e, a, b: a + b)),
    "Swish": _op(
        15,
        _alike(FLOATS, 1),
        lambda e, at, x: x[0] * vectormath.sigmoid(e, e.share(x[0] * e.f32(float(at["alpha"])))),
        alpha=1.0,
    ),
    "Tanh": _math(16, vectormath.tanh),
    "Where": _op(1, _where_type, lambda e, _, x: e.select(x[0], x[1], x[2])),
    "Xor": _logic(2, lambda e, x: e.differ(x[0], x[1])),
}

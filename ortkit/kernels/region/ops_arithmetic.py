"""Arithmetic, comparisons and logic.

Integers wrap around, as they do in ONNX Runtime; x / 0, at which ONNX Runtime crashes, is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortkit.kernels.region.dtypes import (
    DTYPES,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    bits_of,
)
from ortkit.kernels.region.pointwise import (
    Attributes,
    PointwiseOp,
    TypeRule,
    Write,
    alike,
    binary,
    op,
    unary,
)
from ortkit.kernels.region.vectormath import copy_sign
from ortkit.refusal import Refused

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

REALS = (*FLOATS, "float64")


def _where_type(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
    if len(dtypes) != 3 or dtypes[0] != "bool" or dtypes[1] != dtypes[2]:
        return Refused(f"operands of type {', '.join(dtypes)}")
    return dtypes[1]


def _mod_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    if attributes["fmod"] not in (0, 1):
        return Refused(f"fmod {attributes['fmod']}")
    return alike((*FLOATS, *INTEGERS) if attributes["fmod"] else INTEGERS, 2)(dtypes, attributes)


def _shift_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    if attributes["direction"] not in ("LEFT", "RIGHT"):
        return Refused(f"direction {attributes['direction']!r}")
    return alike(UNSIGNED, 2)(dtypes, attributes)


def _is_real(e: Emitter, x: Expr) -> bool:
    return e.dtype(x).startswith("float")


def clip(e: Emitter, x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """Return x within bounds; NaN stays. Where the bounds cross, `high`."""
    if low is not None:
        x = e.share(e.select(x < low, low, x))
    return x if high is None else e.select(x > high, high, x)


def _clip_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    if len(dtypes) > 3:
        return Refused(f"{len(dtypes)} operands")
    return alike(NUMBERS, None)(dtypes, attributes)


def _clip(e: Emitter, _attributes: Attributes, operands: Sequence[Expr | None]) -> Expr:
    x, low, high = (*operands, None, None)[:3]
    if _is_real(e, x):
        # A bound that is not given is the type's limit, which infinities are beyond. (float16 and
        # bfloat16 are float32 here: infinities stay.)
        limit = float(np.finfo(e.dtype(x)).max)
        low = e.constant(-limit, e.dtype(x)) if low is None else low
        high = e.constant(limit, e.dtype(x)) if high is None else high
    return clip(e, x, low, high)


def _maximum(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.select(e.either(a > b, e.is_nan(a)), a, b)


def _minimum(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.select(e.either(a < b, e.is_nan(a)), a, b)


def _fold(step: Callable[[Emitter, Expr, Expr], Expr]) -> Write:
    def write(e: Emitter, _attributes: Attributes, operands: Sequence[Expr]) -> Expr:
        result = operands[0]
        for operand in operands[1:]:
            result = e.share(step(e, result, operand))
        return result

    return write


def _mean(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    total = _fold(lambda _e, a, b: a + b)(e, attributes, operands)
    return total / e.constant(len(operands), e.dtype(total))


def _sign(e: Emitter, x: Expr) -> Expr:
    zero, one = e.constant(0, e.dtype(x)), e.constant(1, e.dtype(x))
    if e.dtype(x) in UNSIGNED:
        return e.select(x > zero, one, zero)
    return e.select(x > zero, one, e.select(x < zero, e.negative(one), x))


def _absolute(e: Emitter, x: Expr) -> Expr:
    return x if e.dtype(x) in UNSIGNED else e.absolute(x)


def _divide(e: Emitter, a: Expr, b: Expr) -> Expr:
    return a / b if _is_real(e, a) else _with_safe_divisor(e, a, b, e.truncated_quotient)


def _with_safe_divisor(
    e: Emitter, a: Expr, b: Expr, write: Callable[[Expr, Expr], Expr], by_minus_one: bool = True
) -> Expr:
    """Write an integer division that never traps.

    Processors trap at x / 0 and at the lowest number divided by -1.
    """
    zero, one = e.constant(0, e.dtype(a)), e.constant(1, e.dtype(a))
    is_zero = e.share(e.equal(b, zero))
    if e.dtype(a) in UNSIGNED:
        return e.select(is_zero, zero, write(a, e.select(is_zero, one, b)))
    is_minus_one = e.share(e.equal(b, e.negative(one)))
    safe = e.share(e.select(e.either(is_zero, is_minus_one), one, b))
    special = e.select(is_zero, zero, e.negative(a) if by_minus_one else zero)
    return e.select(e.either(is_zero, is_minus_one), special, write(a, safe))


def _modulo(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    a, b = operands
    if _is_real(e, a):
        return _float_remainder(e, a, b)
    is_like_c = bool(attributes["fmod"])
    write = e.truncated_remainder if is_like_c else e.floored_remainder
    return _with_safe_divisor(e, a, b, write, by_minus_one=False)


def _float_remainder(e: Emitter, x: Expr, y: Expr) -> Expr:
    """Return C's fmod of float32, exactly.

    In steps of 28 bits of the quotient, which is below 2^277: each quotient of two float64 is
    right to the integer then, and what is left is a float64 exactly.
    """
    divisor = e.share(e.absolute(e.cast(y, "float64")))
    rest = e.share(e.absolute(e.cast(x, "float64")))
    for power in range(252, -1, -28):
        step = e.share(divisor * e.constant(2.0**power, "float64"))
        rest = e.share(rest - e.floor(rest / step) * step)
    infinity = e.constant(float("inf"), "float64")
    # Beyond all finite numbers the quotient is 0, and 0 times infinity would be NaN.
    is_whole = e.both(
        e.equal(divisor, infinity), e.absolute(x) < e.constant(float("inf"), "float32")
    )
    return e.select(is_whole, x, copy_sign(e, e.cast(rest, "float32"), x))


def _shift(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    x, by = operands
    bits = bits_of(e.dtype(x))
    # Shifting by all bits or more is 0 here; C++ leaves it open.
    is_in_range = e.share(by < e.constant(bits, e.dtype(x)))
    safe = e.share(e.select(is_in_range, by, e.constant(0, e.dtype(x))))
    shifted = x << safe if attributes["direction"] == "LEFT" else x >> safe
    return e.select(is_in_range, shifted, e.constant(0, e.dtype(x)))


def _is_infinite(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    (x,) = operands
    infinity = e.constant(float("inf"), e.dtype(x))
    found = e.constant(False, "bool")
    if attributes["detect_positive"]:
        found = e.either(found, e.equal(x, infinity))
    if attributes["detect_negative"]:
        found = e.either(found, e.equal(x, e.negative(infinity)))
    return found


def _equal(e: Emitter, a: Expr, b: Expr) -> Expr:
    return e.invert(e.differ(a, b)) if e.dtype(a) == "bool" else e.equal(a, b)


def _compare(
    write: Callable[[Emitter, Expr, Expr], Expr], allowed: Sequence[str] = NUMBERS
) -> PointwiseOp:
    return op(1, alike(allowed, 2, "bool"), lambda e, _, x: write(e, x[0], x[1]))


def _logic(count: int, write: Callable[[Emitter, Sequence[Expr]], Expr]) -> PointwiseOp:
    return op(1, alike(("bool",), count), lambda e, _, x: write(e, x))


def _to_bool(allowed: Sequence[str]) -> TypeRule:
    return alike(allowed, 1, "bool")


ARITHMETIC: Mapping[str, PointwiseOp] = {
    "Abs": unary(1, NUMBERS, _absolute),
    "Add": binary(1, NUMBERS, lambda e, a, b: e.add(a, b)),
    "And": _logic(2, lambda e, x: e.both(x[0], x[1])),
    "BitShift": op(2, _shift_type, _shift, direction=""),
    "BitwiseAnd": binary(1, INTEGERS, lambda _e, a, b: a & b),
    "BitwiseNot": unary(1, INTEGERS, lambda _e, x: ~x),
    "BitwiseOr": binary(1, INTEGERS, lambda _e, a, b: a | b),
    "BitwiseXor": binary(1, INTEGERS, lambda _e, a, b: a ^ b),
    "Ceil": unary(1, REALS, lambda e, x: e.ceil(x)),
    "Clip": op(2, _clip_type, _clip),
    "Div": binary(10, NUMBERS, _divide),
    "Equal": _compare(_equal, DTYPES),
    "Floor": unary(1, REALS, lambda e, x: e.floor(x)),
    "Greater": _compare(lambda _e, a, b: a > b),
    "GreaterOrEqual": _compare(lambda _e, a, b: a >= b),
    "Identity": unary(0, DTYPES, lambda _e, x: x),
    "IsInf": op(2, _to_bool(REALS), _is_infinite, detect_negative=1, detect_positive=1),
    "IsNaN": op(1, _to_bool(REALS), lambda e, _, x: e.is_nan(x[0])),
    "Less": _compare(lambda _e, a, b: a < b),
    "LessOrEqual": _compare(lambda _e, a, b: a <= b),
    "Max": op(2, alike(NUMBERS, None), _fold(_maximum)),
    "Mean": op(3, alike(REALS, None), _mean),
    "Min": op(2, alike(NUMBERS, None), _fold(_minimum)),
    "Mod": op(200, _mod_type, _modulo, fmod=0),
    "Mul": binary(1, NUMBERS, lambda e, a, b: e.multiply(a, b)),
    "Neg": unary(1, (*REALS, *SIGNED), lambda e, x: e.negative(x)),
    "Not": _logic(1, lambda e, x: e.invert(x[0])),
    "Or": _logic(2, lambda e, x: e.either(x[0], x[1])),
    "Reciprocal": unary(10, REALS, lambda e, x: e.constant(1.0, e.dtype(x)) / x),
    "Round": unary(1, REALS, lambda e, x: e.round_half_even(x)),
    "Sign": unary(2, NUMBERS, _sign),
    "Sqrt": unary(12, REALS, lambda e, x: e.sqrt(x)),
    "Sub": binary(1, NUMBERS, lambda e, a, b: e.subtract(a, b)),
    "Sum": op(2, alike(REALS, None), _fold(lambda _e, a, b: a + b)),
    "Where": op(1, _where_type, lambda e, _, x: e.select(x[0], x[1], x[2])),
    "Xor": _logic(2, lambda e, x: e.differ(x[0], x[1])),
    # Not ONNX's: Identity that keeps what follows from being fused with what went before.
}

"""Sine, cosine, tangent and their inverses: float32, no table, no branch, right for any argument.

See vectormath.py for how polynomials were made and what an ulp is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import copy_sign, polynomial

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

# sin(r) = r + r^3 P(r^2) for |r| <= pi/4; relative error 2^-28.0
_SIN = (-0.16666655, 0.008332191, -0.00019518599)
# cos(r) = 1 - r^2/2 + r^4 P(r^2) for |r| <= pi/4; relative error 2^-33.0
_COS = (0.041666646, -0.0013887311, 2.4432553e-05)
# tan(r) = r + r^3 P(r^2) for |r| <= pi/4; relative error 2^-29.5
_TAN = (
    0.3333335, 0.13332674, 0.054059163, 0.02128469, 0.010831752, 9.2449875e-05, 0.0043756845,
)  # fmt: skip
# asin(x) = x + x^3 P(x^2) for |x| <= 1/2; relative error 2^-27.6
_ASIN = (0.16666752, 0.074953094, 0.04546915, 0.024184778, 0.042158306)
# atan(x) = x + x^3 P(x^2) for |x| <= 1; relative error 2^-28.5
_ATAN = (
    -0.333333, 0.19998531, -0.1426405, 0.10951155, -0.08400377, 0.057904202, -0.03112406,
    0.010885485, -0.0017870689,
)  # fmt: skip

# pi/2 less what float32 makes of it.
_HALF_PI_LOW = -4.371139000186243e-08
# 1/(2 pi) in binary, cut into numbers so short that a float32 times one is a float64 exactly, and
# the next 53 bits. What is left out is below 2^-197, and 2^128 times it below any float32's
# distance from a zero.
_TURN_BITS = 29
_TURN_PARTS = 5
_TURN_TAIL_BITS = 53
_INVERSE_TURN_BITS = _TURN_BITS * _TURN_PARTS + _TURN_TAIL_BITS
# floor(2^198 / (2 pi))
_INVERSE_TURN = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041F


def _turn_parts() -> tuple[list[float], float]:
    """Return 1/(2 pi) as a sum of `_TURN_PARTS` numbers of `_TURN_BITS` bits each, and a tail."""
    parts, rest = [], _INVERSE_TURN
    for index in range(1, _TURN_PARTS + 1):
        shift = _INVERSE_TURN_BITS - index * _TURN_BITS
        part, rest = divmod(rest, 2**shift)
        parts.append(math.ldexp(part, -index * _TURN_BITS))
    return parts, math.ldexp(rest, -_INVERSE_TURN_BITS)


def _reduce(e: Emitter, x: Expr) -> tuple[Expr, Expr]:
    """Return r, q (int32) with x = r + q pi/2 modulo 2 pi and |r| <= pi/4, or barely more.

    r is right to a float32's last bit even beside a multiple of pi/2 (the nearest float32 is 2^-30
    away from one, and float64 sums what is left of each product once whole turns are gone).
    """
    wide = e.share(e.cast(x, "float64"))
    parts, tail = _turn_parts()
    fractions = []
    for part in parts:
        turns = e.share(wide * e.constant(part, "float64"))
        fractions.append(e.share(turns - e.round_half_even(turns)))
    total = fractions[-1]
    for fraction in reversed(fractions[:-1]):
        total = total + fraction
    four = e.constant(4.0, "float64")
    quadrant = e.share(e.round_half_even(e.share(total) * four))
    rest = e.negative(quadrant)
    for fraction in fractions:
        rest = e.share(fraction * four + rest)
    # The tail is at most 2^-17 of a turn: it has no whole turns, and no say in the quadrant.
    rest = e.share(wide * e.constant(4.0 * tail, "float64") + rest)
    angle = e.cast(rest * e.constant(math.pi / 2, "float64"), "float32")
    return e.share(angle), e.share(_to_int(e, quadrant))


def _to_int(e: Emitter, quadrant: Expr) -> Expr:
    # NaN has no integer; any will do, as the angle is NaN then.
    return e.cast(e.select(e.is_nan(quadrant), e.constant(0.0, "float64"), quadrant), "int32")


def sin(e: Emitter, x: Expr) -> Expr:
    """Return the sine within 1.7 ulp; NaN for infinities."""
    angle, quadrant = _reduce(e, x)
    # The sum of the fractions has lost the sign of a zero.
    value = _sine_of(e, angle, quadrant)
    return e.share(e.select(e.equal(x, e.f32(0.0)), x, value))


def cos(e: Emitter, x: Expr) -> Expr:
    """Return the cosine within 1.7 ulp; NaN for infinities."""
    angle, quadrant = _reduce(e, x)
    return _sine_of(e, angle, e.share(quadrant + e.i32(1)))


def _sine_of(e: Emitter, angle: Expr, quadrant: Expr) -> Expr:
    """Return sin(angle + quadrant pi/2)."""
    square = e.share(angle * angle)
    sine = e.share(e.share(angle * square) * polynomial(e, square, _SIN) + angle)
    cosine = e.share(e.share(square * square) * polynomial(e, square, _COS))
    cosine = e.share(cosine + (e.f32(1.0) - e.f32(0.5) * square))
    is_odd = e.not_equal(quadrant & e.i32(1), e.i32(0))
    is_negative = e.not_equal(quadrant & e.i32(2), e.i32(0))
    value = e.share(e.select(is_odd, cosine, sine))
    return e.share(e.select(is_negative, e.negative(value), value))


def tan(e: Emitter, x: Expr) -> Expr:
    """Return the tangent within 2.7 ulp; NaN for infinities."""
    angle, quadrant = _reduce(e, x)
    square = e.share(angle * angle)
    tangent = e.share(e.share(angle * square) * polynomial(e, square, _TAN) + angle)
    is_odd = e.not_equal(quadrant & e.i32(1), e.i32(0))
    value = e.share(e.select(is_odd, e.f32(-1.0), tangent) / e.select(is_odd, tangent, e.f32(1.0)))
    return e.share(e.select(e.equal(x, e.f32(0.0)), x, value))


def asin(e: Emitter, x: Expr) -> Expr:
    """Return the arc sine within 2.5 ulp; NaN beyond [-1, 1]."""
    magnitude = e.share(e.absolute(x))
    is_large = e.share(magnitude > e.f32(0.5))
    value = _asin_folded(e, magnitude, is_large)
    folded = e.f32(math.pi / 2) - e.f32(2.0) * value
    return copy_sign(e, e.select(is_large, folded, e.share(value)), x)


def acos(e: Emitter, x: Expr) -> Expr:
    """Return the arc cosine within 1.5 ulp; NaN beyond [-1, 1]."""
    magnitude = e.share(e.absolute(x))
    is_large = e.share(magnitude > e.f32(0.5))
    value = _asin_folded(e, magnitude, is_large)
    is_negative = e.share(x < e.f32(0.0))
    twice = e.share(value + value)
    large = e.select(is_negative, e.f32(math.pi) - twice, twice)
    signed = e.share(e.select(is_negative, e.negative(value), value))
    low = e.f32(_HALF_PI_LOW)
    return e.share(e.select(is_large, large, e.f32(math.pi / 2) - (signed - low)))


def _asin_folded(e: Emitter, magnitude: Expr, is_large: Expr) -> Expr:
    """Return asin(b) for b = magnitude, or where that is large b = sqrt((1 - it) / 2)."""
    halved = e.share((e.f32(1.0) - magnitude) * e.f32(0.5))
    square = e.share(e.select(is_large, halved, magnitude * magnitude))
    base = e.share(e.select(is_large, e.sqrt(halved), magnitude))
    return e.share(e.share(base * square) * polynomial(e, square, _ASIN) + base)


def atan(e: Emitter, x: Expr) -> Expr:
    """Return the arc tangent within 2.0 ulp."""
    magnitude = e.share(e.absolute(x))
    is_large = e.share(magnitude > e.f32(1.0))
    base = e.share(
        e.select(is_large, e.f32(1.0), magnitude) / e.select(is_large, magnitude, e.f32(1.0))
    )
    square = e.share(base * base)
    value = e.share(e.share(base * square) * polynomial(e, square, _ATAN) + base)
    return copy_sign(e, e.select(is_large, e.f32(math.pi / 2) - value, value), x)

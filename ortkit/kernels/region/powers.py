"""Powers, hyperbolic functions and their inverses, and what else needs more than float32 inside.

See vectormath.py for how polynomials were made and what an ulp is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import (
    at_least,
    at_most,
    copy_sign,
    exp_scaled,
    infinity,
    nan,
    polynomial,
    scaled,
)

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

# sinh(x) = x + x^3 P(x^2) for |x| <= 1; relative error 2^-31.6
_SINH = (0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06)
# 2^r = 1 + r P(r) for |r| <= 1/2; relative error 2^-28.3
_EXP2 = (0.6931472, 0.24022648, 0.055503596, 0.009618503, 0.0013390997, 0.00015327803)
# atanh(s) = s + s^3 P(s^2) for |s| <= 0.172, in float64; relative error 2^-46
_ATANH = (
    0.3333333333329525, 0.20000000025489462, 0.14285708654400092, 0.11111679986843417,
    0.09062003823515664, 0.08407744557175899,
)  # fmt: skip

_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_ONE_BITS = 0x3FF0000000000000
_MANTISSA_BITS = 52
_EXPONENT_BIAS = 1023


def sinh(e: Emitter, x: Expr) -> Expr:
    """Return the hyperbolic sine within 1.8 ulp."""
    magnitude = e.share(e.absolute(x))
    square = e.share(x * x)
    small = e.share(e.share(x * square) * polynomial(e, square, _SINH) + x)
    half = exp_scaled(e, magnitude, -1)  # half of e^|x|
    large = copy_sign(e, half - e.f32(0.25) / half, x)
    return e.share(e.select(magnitude < e.f32(1.0), small, large))


def cosh(e: Emitter, x: Expr) -> Expr:
    """Return the hyperbolic cosine within 1.6 ulp."""
    half = exp_scaled(e, e.share(e.absolute(x)), -1)
    return e.share(half + e.f32(0.25) / half)


def asinh(e: Emitter, x: Expr) -> Expr:
    """Return the inverse hyperbolic sine within 1 ulp."""
    t = e.share(e.cast(e.absolute(x), "float64"))
    one = e.constant(1.0, "float64")
    large = e.cast(_log(e, e.share(t + e.sqrt(t * t + one))), "float32")
    small = e.share(x - x * (x * x) * e.f32(1 / 6))
    is_small = e.absolute(x) < e.f32(2.0**-8)
    value = e.select(is_small, small, _unless_infinite(e, x, copy_sign(e, large, x)))
    return copy_sign(e, value, x)


def acosh(e: Emitter, x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine within 1 ulp; NaN below 1."""
    t = e.share(e.cast(x, "float64"))
    one = e.constant(1.0, "float64")
    # (t - 1)(t + 1) rather than t^2 - 1, which would cancel.
    root = e.share(e.sqrt(e.share((t - one) * (t + one))))
    value = _unless_infinite(e, x, e.cast(_log(e, e.share(t + root)), "float32"))
    return e.share(e.select(x >= e.f32(1.0), value, nan(e)))


def atanh(e: Emitter, x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent within 1 ulp; infinite at 1, NaN beyond."""
    t = e.share(e.cast(x, "float64"))
    one = e.constant(1.0, "float64")
    ratio = e.share((one + t) / (one - t))
    large = e.cast(_log(e, ratio) * e.constant(0.5, "float64"), "float32")
    magnitude = e.share(e.absolute(x))
    small = e.share(x + x * (x * x) * e.f32(1 / 3))
    at_end = e.select(e.equal(magnitude, e.f32(1.0)), copy_sign(e, infinity(e), x), nan(e))
    value = e.select(magnitude < e.f32(1.0), large, at_end)
    return e.share(e.select(magnitude < e.f32(2.0**-8), small, value))


def _unless_infinite(e: Emitter, x: Expr, value: Expr) -> Expr:
    """Return `value`, but x where that is infinite or NaN."""
    return e.share(e.select(e.absolute(x) < infinity(e), value, x))


def power(e: Emitter, x: Expr, y: Expr) -> Expr:
    """Return x^y for a float32 x and a y of any type within 1.1 ulp, special cases as in C.

    By way of e^(y log|x|) in float64, whose 53 bits leave room for the product's error.
    """
    one, none = e.f32(1.0), e.f32(0.0)
    y = e.share(e.cast(y, "float64"))
    zero = e.constant(0.0, "float64")
    magnitude = e.share(e.absolute(x))
    logarithm = _log(e, e.share(e.cast(magnitude, "float64")))
    result = _exp2_of(e, e.share(logarithm * y * e.constant(1 / math.log(2.0), "float64")))
    # log is not asked about 0, infinity, NaN and, as y may be infinite, 1.
    grows = e.share(y > zero)
    result = e.select(e.equal(magnitude, none), e.select(grows, none, infinity(e)), result)
    at_infinity = e.select(grows, infinity(e), none)
    result = e.share(e.select(e.equal(magnitude, infinity(e)), at_infinity, result))
    result = e.select(e.equal(magnitude, one), one, result)
    is_whole = e.share(e.equal(y, e.floor(y)))
    half = e.share(y * e.constant(0.5, "float64"))
    is_odd = e.both(is_whole, e.not_equal(half, e.floor(half)))
    result = e.share(e.select(is_odd, copy_sign(e, result, x), result))
    is_real = e.either(e.either(x >= none, is_whole), e.equal(magnitude, infinity(e)))
    result = e.share(e.select(is_real, result, nan(e)))
    is_nan = e.either(e.is_nan(x), e.is_nan(y))
    is_one = e.either(e.equal(x, one), e.equal(y, zero))
    return e.share(e.select(is_one, one, e.select(is_nan, nan(e), result)))


def _exp2_of(e: Emitter, z: Expr) -> Expr:
    """Return 2^z as float32 for a float64 z."""
    z = at_most(e, at_least(e, z, -160.0), 130.0)
    whole = e.share(e.round_half_even(z))
    r = e.share(e.cast(z - whole, "float32"))
    mantissa = r * polynomial(e, r, _EXP2) + e.f32(1.0)
    n = e.share(e.cast(e.select(e.is_nan(whole), e.constant(0.0, "float64"), whole), "int32"))
    return scaled(e, mantissa, n)


def _log(e: Emitter, x: Expr) -> Expr:
    """Return the natural logarithm of a float64 x, normal and positive, within 2^-45 of itself."""
    bits = e.share(e.bitcast(x, "uint64"))
    shift = e.constant(_MANTISSA_BITS, "uint64")
    biased = e.share((bits + e.constant(_ONE_BITS - _SQRT_HALF_BITS, "uint64")) >> shift)
    lifted = bits + e.constant(_ONE_BITS, "uint64")  # first, as no operator may fall below 0
    mantissa = e.share(e.bitcast(lifted - (biased << shift), "float64"))
    one = e.constant(1.0, "float64")
    s = e.share((mantissa - one) / (mantissa + one))
    square = e.share(s * s)
    half = e.share(s + s * (square * polynomial(e, square, _ATANH)))
    n = e.cast(e.cast(biased, "int32") - e.i32(_EXPONENT_BIAS), "float64")
    return e.share(n * e.constant(math.log(2.0), "float64") + (half + half))

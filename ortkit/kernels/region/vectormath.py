"""Accurate float32 functions in plain arithmetic, so that every loop around them vectorizes.

TVM's own intrinsics become one call of the C library per lane (2 to 5 ns an element, against 0.15
to 0.3 here; apache-tvm 0.27). Polynomials: minimax in float64 by reweighted least squares over
3,000 Chebyshev nodes, coefficients rounded to float32 one at a time, the rest fitted again.
tests/kernels/test_vectormath.py holds each function to its stated error, an ulp being a float32's
spacing at the exact value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

# e^r = 1 + r + r^2 P(r) for |r| <= ln(2)/2; relative error 2^-28.3
_EXP = (0.49999994, 0.166665211, 0.0416682661, 0.00836867746, 0.00138207339)
# e^r - 1 = r + r^2 P(r) for |r| <= ln(2)/2; relative error 2^-31.1
_EXPM1 = (0.5, 0.16666666, 0.041666493, 0.008333545, 0.0013932334, 0.00019762515)
# e^2r - 1 = 2 r + r^2 P(r) for |r| <= ln(2)/4; relative error 2^-26.1
_EXPM1_TWICE = (1.9999999, 1.3333237, 0.66667897, 0.26772067, 0.08877244)
# 2^r = 1 + r P(r) for |r| <= 1/2; relative error 2^-28.3
_EXP2 = (0.6931472, 0.24022648, 0.055503596, 0.009618503, 0.0013390997, 0.00015327803)
# 2^r = 1 + r P(r) for |r| <= 1/2; relative error 2^-13.2
_EXP2_ROUGH = (0.6932829, 0.24221095, 0.05500893)
# 2^r - 1 = r P(r) for |r| <= 1/2; relative error 2^-26.2
_EXP2M1 = (0.6931472, 0.24022649, 0.055503674, 0.009618306, 0.0013387421, 0.00015384579)
# 1 - erf(x) = 2^(x P(x)) for 0 <= x <= 3.93; relative error of erf 2^-27.4
_ERF = (
    -1.627907, -0.91844743, -0.14827925, 0.02764151, 0.0002116104, -0.002383206, 0.00090008415,
    -0.00016586276, 1.2899205e-05,
)  # fmt: skip
# (1 - erf(x / sqrt(2))) / 2 = 2^P(x) for 0 <= x <= 9; error of x times it 2^-26.4; P falls beyond
_NORMAL_TAIL = (
    -1.0, -1.151108, -0.45918036, -0.052585784, 0.0071971524, -0.00024142281, -0.00014230111,
    3.004388e-05, -2.049205e-06,
)  # fmt: skip
# The same for results in half precision; relative error of x times it 2^-17, 2^-78 at the end
_NORMAL_TAIL_ROUGH = (
    -1.00000758, -1.15103667, -0.459170456, -0.0530517959, 0.00794226004, -0.000748418624,
    3.24445668e-05,
)  # fmt: skip
# log(1 + f) = f - f^2/2 + f^3 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2); relative error 2^-30.3
_LOG = (
    0.333333135, -0.250000089, 0.200020716, -0.166679889, 0.142203584, -0.124062337, 0.118835486,
    -0.116700985, 0.0674926937,
)  # fmt: skip
# log(1 + u) = u + u^2 P(u) for 0 <= u <= 1; relative error 2^-30.1
_LOG1P = (
    -0.49999988, 0.33332714, -0.24988864, 0.19899622, -0.16135158, 0.12479481, -0.08323805,
    0.042113908, -0.013691187, 0.00208444,
)  # fmt: skip

# Where the tail of the normal distribution is taken to be 0: P there is -127, see `gelu`.
_TAIL_END = 10.3166
_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127
# Adding it to |x| < 2^22 leaves no room for a fraction: the sum is x rounded to an integer. In its
# lowest bits it has that integer plus the bias, as the exponent of a float32 is written.
_ROUNDER = 1.5 * 2.0**23 + _EXPONENT_BIAS
_LIFT = 64
#: log2(e)
LOG2_E = 1.4426950408889634
# ln(2) in two parts: the first has few enough bits that n * _LN2_HIGH is exact for |n| < 2^9.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723e-06
_SIGN_BIT = 0x80000000
_SQRT_HALF_BITS = 0x3F3504F3
_INFINITY_BITS = 0x7F800000
_NAN_BITS = 0x7FC00000


def polynomial(e: Emitter, x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return c0 + c1 x + c2 x^2 + ... by Horner's rule, in the type of x."""
    dtype = e.dtype(x)
    result = e.constant(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + e.constant(coefficient, dtype)
    return e.share(result)


def factor(e: Emitter, value: float, dtype: str = "float32") -> Expr:
    """Return a constant to multiply with.

    Zero is hidden from TVM, which would make x * 0 into 0 where x is infinite or NaN.
    """
    constant = e.constant(value, dtype)
    return constant if value else e.share(constant)


def at_most(e: Emitter, x: Expr, bound: float) -> Expr:
    """Return the smaller of x and `bound`; NaN stays, where tirx.min would drop it."""
    limit = e.constant(bound, e.dtype(x))
    return e.share(e.select(limit < x, limit, x))


def at_least(e: Emitter, x: Expr, bound: float) -> Expr:
    """Return the larger of x and `bound`; NaN stays, where tirx.max would drop it."""
    limit = e.constant(bound, e.dtype(x))
    return e.share(e.select(limit > x, limit, x))


def infinity(e: Emitter) -> Expr:
    """Return float32's infinity."""
    return e.bitcast(e.i32(_INFINITY_BITS), "float32")


def nan(e: Emitter) -> Expr:
    """Return a quiet NaN of float32."""
    return e.bitcast(e.i32(_NAN_BITS), "float32")


def copy_sign(e: Emitter, magnitude: Expr, sign: Expr) -> Expr:
    """Return |magnitude| with the sign of `sign`, of a zero too."""
    bits = e.bitcast(magnitude, "uint32") & e.constant(_SIGN_BIT - 1, "uint32")
    return e.share(e.bitcast(bits | _sign_bit(e, sign), "float32"))


def exp(e: Emitter, x: Expr) -> Expr:
    """Return e^x within 1.1 ulp; overflow is infinite, denormal results are kept, NaN stays."""
    return exp_scaled(e, x, 0)


def exp_scaled(e: Emitter, x: Expr, power: int) -> Expr:
    """Return e^x 2^power for a small `power` within 1.1 ulp, without overflow on the way."""
    x = at_most(e, at_least(e, x, -104.0), 90.0)
    # Lifted below 0 and lowered above, as 2^n alone may be no float32 where the product is one.
    is_below = x < e.f32(0.0)
    rounder = e.share(e.select(is_below, e.f32(_ROUNDER + _LIFT), e.f32(_ROUNDER - _LIFT)))
    mantissa, rounded = _exp_parts(e, x, rounder)
    down, up = e.f32(2.0 ** (power - _LIFT)), e.f32(2.0 ** (power + _LIFT))
    return e.share(mantissa * _scale(e, rounded) * e.select(is_below, down, up))


def scaled(e: Emitter, x: Expr, n: Expr) -> Expr:
    """Return x 2^n, rounded once, for x in about [1/2, 2] and -250 <= n <= 250."""
    # Two steps, as 2^n alone may be no float32 where the product is one.
    half = e.share(n >> e.i32(1))
    return e.share(x * _two_to(e, half) * _two_to(e, n - half))


def exp_within(e: Emitter, x: Expr) -> Expr:
    """Return e^x within 1.1 ulp for x that is known to lie within [-87, 88], or is NaN."""
    mantissa, rounded = _exp_parts(e, x, e.f32(_ROUNDER))
    return e.share(mantissa * _scale(e, rounded))


def exp_nonpositive(e: Emitter, x: Expr) -> Expr:
    """Return e^x for x <= 0, or NaN, within 1.1 ulp; 0 below -87.7.

    A denormal result costs Intel's processors some hundred cycles, and masked scores are full of
    them: this is the one for Softmax.
    """
    return exp_within(e, at_least(e, x, -88.0))  # 2^-127 comes out as 0


def exp2_rough(e: Emitter, x: Expr) -> Expr:
    """Return 2^x for x <= 64, or NaN, within 2^-13: enough for what is rounded to bfloat16.

    0 below -126.5.
    """
    x = at_least(e, x, -127.0)
    rounded = e.share(x + e.f32(_ROUNDER))
    r = e.share(x - e.share(rounded - e.f32(_ROUNDER)))
    mantissa = e.share(polynomial(e, r, _EXP2_ROUGH) * r + e.f32(1.0))
    return e.share(mantissa * _scale(e, rounded))


def _exp_parts(e: Emitter, x: Expr, rounder: Expr) -> tuple[Expr, Expr]:
    """Return m in about [0.7, 1.42] and `rounder` + n, with e^x = m * 2^n."""
    rounded = e.share(x * e.f32(LOG2_E) + rounder)
    n = e.share(rounded - rounder)
    r = e.share(x - n * e.f32(_LN2_HIGH) - n * e.f32(_LN2_LOW))
    mantissa = e.share((polynomial(e, r, _EXP) * r + e.f32(1.0)) * r + e.f32(1.0))
    return mantissa, rounded


def _scale(e: Emitter, rounded: Expr) -> Expr:
    """Return 2^n of _ROUNDER + n for -126 <= n <= 127, 0 for -127 and infinity for 128."""
    return e.bitcast(e.bitcast(rounded, "int32") << e.i32(_MANTISSA_BITS), "float32")


def _two_to(e: Emitter, n: Expr) -> Expr:
    """Return 2^n of an int32 -126 <= n <= 127."""
    return e.bitcast((n + e.i32(_EXPONENT_BIAS)) << e.i32(_MANTISSA_BITS), "float32")


def expm1(e: Emitter, x: Expr) -> Expr:
    """Return e^x - 1 within 1.6 ulp; overflow is infinite."""
    x = at_most(e, at_least(e, x, -18.0), 89.0)
    # Halved until the last step, as 2^n may be no float32 where the result is one.
    rounder = e.share(x * e.f32(LOG2_E) + e.f32(_ROUNDER - 1.0))
    n = e.share(rounder - e.f32(_ROUNDER - 1.0))
    r = e.share(x - n * e.f32(_LN2_HIGH) - n * e.f32(_LN2_LOW))
    tail = e.share(e.share(r * r) * polynomial(e, r, _EXPM1) + r)
    half = e.share(_scale(e, rounder))
    return copy_sign(e, (half * tail + (half - e.f32(0.5))) * e.f32(2.0), x)


def erf(e: Emitter, x: Expr) -> Expr:
    """Return the error function within 1.8 ulp."""
    t = at_most(e, e.share(e.absolute(x)), 3.93)
    power = _times_polynomial(e, t, _ERF)
    rounder = e.share(power + e.f32(_ROUNDER))
    r = e.share(power - (rounder - e.f32(_ROUNDER)))
    scale = e.share(_scale(e, rounder))
    tail = _times_polynomial(e, r, _EXP2M1)
    return copy_sign(e, scale * tail + (scale - e.f32(1.0)), x)


def _times_polynomial(e: Emitter, x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return x P(x); rounded once but for what is small beside x."""
    rest = polynomial(e, x, coefficients[1:])
    return e.share(e.share(x * x) * rest + x * e.f32(coefficients[0]))


def gelu(e: Emitter, x: Expr) -> Expr:
    """Return x times the normal distribution function at x.

    Within 3 ulp for x >= 0, and within 2^-24.3 for x < 0, where the written form
    x (1 + erf(x / sqrt(2))) / 2 is off by up to 2^-23 as it cancels. NaN at minus infinity, as
    written: (x + |x|) / 2 is NaN there, and costs what max(x, 0) does. Where results are
    rounded to half precision within 2^-17 of the result; two steps fewer are a tenth of it all.
    """
    magnitude = e.share(e.absolute(x))
    t = at_most(e, magnitude, _TAIL_END)
    power = polynomial(e, t, _NORMAL_TAIL_ROUGH if e.is_rough else _NORMAL_TAIL)
    tail = e.power_of_two(power)
    if tail is None:
        rounder = e.share(power + e.f32(_ROUNDER))
        r = e.share(power - (rounder - e.f32(_ROUNDER)))
        mantissa = e.share(r * polynomial(e, r, _EXP2) + e.f32(1.0))
        # At _TAIL_END the power is -127, and two to it 0: from there on the tail is none.
        tail = e.share(mantissa * _scale(e, rounder))
    # Negated twice, so that the sign of a zero stays.
    below = e.share(x * e.f32(-0.5) - magnitude * e.f32(0.5))
    return e.share(e.negative(below) - t * tail)


def gelu_tanh(e: Emitter, x: Expr) -> Expr:
    """Return x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, without its cancellation.

    Within 2.2 ulp for x >= 0, and within 2^-24 for x < 0. NaN at minus infinity, as written.
    """
    inner = e.share(x + e.f32(0.044715) * (x * (x * x)))
    return e.share(x / _one_plus_exp_of_minus(e, inner * e.f32(2.0 * math.sqrt(2.0 / math.pi))))


def tanh(e: Emitter, x: Expr) -> Expr:
    """Return the hyperbolic tangent within 2.7 ulp."""
    t = at_most(e, e.share(e.absolute(x)), 10.0)
    rounder = e.share(t * e.f32(-2.0 * LOG2_E) + e.f32(_ROUNDER))
    n = e.share(rounder - e.f32(_ROUNDER))
    # One part of ln(2)/2 is enough, as what is lost counts ever less beside 1.
    r = e.share(e.negative(t) - n * e.f32(0.5 * math.log(2.0)))
    tail = e.share(e.share(r * r) * polynomial(e, r, _EXPM1_TWICE) + (r + r))
    scale = e.share(_scale(e, rounder))
    power_less_one = e.share(scale * tail + (scale - e.f32(1.0)))
    return copy_sign(e, power_less_one / (power_less_one + e.f32(2.0)), x)


def sigmoid(e: Emitter, x: Expr) -> Expr:
    """Return 1 / (1 + e^-x) within 2.7 ulp; what would be denormal may be 0."""
    return e.share(e.f32(1.0) / _one_plus_exp_of_minus(e, x))


def silu(e: Emitter, x: Expr, alpha: float = 1.0) -> Expr:
    """Return x / (1 + e^(-alpha x)).

    Where alpha is 1 within 2.8 ulp for x >= -88.3, below it 0, and NaN at minus infinity.
    """
    return e.share(x / _one_plus_exp_of_minus(e, x * factor(e, alpha)))


def _one_plus_exp_of_minus(e: Emitter, x: Expr) -> Expr:
    """Return 1 + e^-x, infinite below -88.4."""
    rough = e.power_of_two(e.share(x * e.f32(-LOG2_E)))
    if rough is not None:
        return e.share(rough + e.f32(1.0))
    # At these bounds the power of two is 2^128, that is infinity, and 2^-127, that is 0.
    bounded = at_least(e, at_most(e, e.share(e.negative(x)), 89.0), -88.0)
    return e.share(exp_within(e, bounded) + e.f32(1.0))


def softplus(e: Emitter, x: Expr) -> Expr:
    """Return log(1 + e^x) within 2 ulp; what would be denormal may be 0."""
    power = exp_nonpositive(e, e.share(e.negative(e.absolute(x))))
    tail = e.share(e.share(power * power) * polynomial(e, power, _LOG1P) + power)
    return e.share(at_least(e, x, 0.0) + tail)


def mish(e: Emitter, x: Expr) -> Expr:
    """Return x tanh(log(1 + e^x)) within 5 ulp for x >= -87.3, below it 0 or nearly so."""
    # With w = e^x the hyperbolic tangent is w (w + 2) / (w (w + 2) + 2).
    power = exp_within(e, at_most(e, at_least(e, x, -88.0), 40.0))
    ratio = e.share(power * (power + e.f32(2.0)))
    return e.share(x * (ratio / (ratio + e.f32(2.0))))


def log(e: Emitter, x: Expr) -> Expr:
    """Return the natural logarithm within 1 ulp; 0 gives -inf, a negative x gives NaN."""
    is_denormal = e.share(x < e.f32(2.0**-126))
    scaled = e.share(e.select(is_denormal, x * e.f32(2.0**_MANTISSA_BITS), x))
    bits = e.share(e.bitcast(scaled, "int32"))
    power = e.share((bits - e.i32(_SQRT_HALF_BITS)) >> e.i32(_MANTISSA_BITS))
    f = e.share(e.bitcast(bits - (power << e.i32(_MANTISSA_BITS)), "float32") - e.f32(1.0))
    n = e.share(e.cast(power - e.select(is_denormal, e.i32(_MANTISSA_BITS), e.i32(0)), "float32"))
    square = e.share(f * f)
    tail = e.share(f * square * polynomial(e, f, _LOG) - square * e.f32(0.5))
    finite = e.share(n * e.f32(_LN2_HIGH) + (f + (n * e.f32(_LN2_LOW) + tail)))
    at_zero = e.select(e.equal(x, e.f32(0.0)), e.negative(infinity(e)), nan(e))
    return e.share(e.select(x > e.f32(0.0), e.select(x < infinity(e), finite, x), at_zero))


def _sign_bit(e: Emitter, x: Expr) -> Expr:
    return e.bitcast(x, "uint32") & e.constant(_SIGN_BIT, "uint32")

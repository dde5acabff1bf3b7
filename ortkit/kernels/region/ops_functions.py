"""Exponential, trigonometric and the like: computed in float32, whatever float comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortkit.kernels.region import powers, trigonometry, vectormath
from ortkit.kernels.region.dtypes import FLOATS
from ortkit.kernels.region.pointwise import Attributes, PointwiseOp, op, unary
from ortkit.refusal import Refused

_EXPONENTS = (*FLOATS, "float64", "int32", "int64")


def _power_type(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
    if len(dtypes) != 2 or dtypes[0] not in FLOATS or dtypes[1] not in _EXPONENTS:
        return Refused(f"operands of type {', '.join(dtypes)}")
    return dtypes[0]


FUNCTIONS: Mapping[str, PointwiseOp] = {
    "Acos": unary(13, FLOATS, trigonometry.acos),
    "Acosh": unary(75, FLOATS, powers.acosh),
    "Asin": unary(11, FLOATS, trigonometry.asin),
    "Asinh": unary(70, FLOATS, powers.asinh),
    "Atan": unary(12, FLOATS, trigonometry.atan),
    "Atanh": unary(60, FLOATS, powers.atanh),
    "Cos": unary(53, FLOATS, trigonometry.cos),
    "Cosh": unary(14, FLOATS, powers.cosh),
    "Erf": unary(15, FLOATS, vectormath.erf),
    "Exp": unary(10, FLOATS, vectormath.exp),
    "Log": unary(15, FLOATS, vectormath.log),
    "Pow": op(90, _power_type, lambda e, _, x: powers.power(e, x[0], x[1])),
    "Sin": unary(53, FLOATS, trigonometry.sin),
    "Sinh": unary(18, FLOATS, powers.sinh),
    "Tan": unary(61, FLOATS, trigonometry.tan),
    "Tanh": unary(12, FLOATS, vectormath.tanh),
    # Not ONNX's: Exp of what is known to be at most 0, as in Softmax.
    "exp_nonpositive": unary(7, FLOATS, vectormath.exp_nonpositive),
}

"""Operators of ONNX that compute each element from one element of each input."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_unary = partial(OpInfo, "", access="elementwise", inputs=(1, 1))
_binary = partial(
    OpInfo, "", access="elementwise", inputs=(2, 2), broadcasts=True, data_inputs=(0, 1)
)
_compare = partial(_binary, dtype="bool")
_activation = partial(_unary, activation=True)
_variadic = partial(OpInfo, "", access="elementwise", inputs=(1, None), broadcasts=True)

ELEMENTWISE = (
    _unary("Abs", exact=True),
    _unary("Acos"),
    _unary("Acosh"),
    _binary("Add", commutative=True, affine=True),
    _binary("And", commutative=True),
    _unary("Asin"),
    _unary("Asinh"),
    _unary("Atan"),
    _unary("Atanh"),
    _unary("BitCast", dtype="attribute"),
    _binary("BitShift"),
    _binary("BitwiseAnd", commutative=True),
    _unary("BitwiseNot"),
    _binary("BitwiseOr", commutative=True),
    _binary("BitwiseXor", commutative=True),
    _unary("Cast", dtype="attribute", affine=True),
    OpInfo("", "CastLike", "elementwise", (2, 2), "other"),
    _unary("Ceil", exact=True),
    _activation("Celu"),
    # The bounds are numbers.
    OpInfo("", "Clip", "elementwise", (1, 3), exact=True, activation=True),
    _unary("Cos"),
    _unary("Cosh"),
    _binary("Div", affine=True),
    _activation("Elu"),
    _compare("Equal", commutative=True),
    _unary("Erf"),
    _unary("Exp"),
    _unary("Floor", exact=True),
    _activation("Gelu"),
    _compare("Greater"),
    _compare("GreaterOrEqual"),
    _activation("HardSigmoid"),
    _activation("HardSwish"),
    _unary("Identity", exact=True, affine=True, moves_only=True, keeps_all=True),
    _unary("IsInf", dtype="bool"),
    _unary("IsNaN", dtype="bool"),
    _activation("LeakyRelu"),
    _compare("Less"),
    _compare("LessOrEqual"),
    _unary("Log"),
    _variadic("Max", exact=True, commutative=True),
    _variadic("Mean", commutative=True, affine=True),
    _variadic("Min", exact=True, commutative=True),
    _activation("Mish"),
    _binary("Mod"),
    _binary("Mul", commutative=True, affine=True),
    _unary("Neg", exact=True, affine=True),
    _unary("Not"),
    _binary("Or", commutative=True),
    _binary("PRelu"),
    _binary("Pow"),
    _unary("Reciprocal"),
    _activation("Relu", exact=True),
    _unary("Round", exact=True),
    _activation("Selu"),
    _unary("Shrink"),
    _activation("Sigmoid"),
    _unary("Sign", exact=True),
    _unary("Sin"),
    _unary("Sinh"),
    _activation("Softplus"),
    _activation("Softsign"),
    _unary("Sqrt"),
    _binary("Sub", affine=True),
    _variadic("Sum", commutative=True, affine=True),
    _activation("Swish"),
    _unary("Tan"),
    _activation("Tanh"),
    _activation("ThresholdedRelu", exact=True),
    OpInfo("", "Where", "elementwise", (3, 3), exact=True, broadcasts=True, data_inputs=(1, 2)),
    _binary("Xor", commutative=True),
)

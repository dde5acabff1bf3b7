"""Operators of ONNX that compute each element from one element of each input."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_unary = partial(OpInfo, "", access="elementwise", inputs=(1, 1))
_binary = partial(
    OpInfo, "", access="elementwise", inputs=(2, 2), broadcasts=True, data_inputs=(0, 1)
)
_compare = partial(_binary, dtype="bool")
_variadic = partial(OpInfo, "", access="elementwise", inputs=(1, None), broadcasts=True)

ELEMENTWISE = (
    _unary("Abs"),
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
    _unary("Ceil"),
    _unary("Celu"),
    # The bounds are numbers.
    OpInfo("", "Clip", "elementwise", (1, 3)),
    _unary("Cos"),
    _unary("Cosh"),
    _binary("Div", affine=True),
    _unary("Elu"),
    _compare("Equal", commutative=True),
    _unary("Erf"),
    _unary("Exp"),
    _unary("Floor"),
    _unary("Gelu"),
    _compare("Greater"),
    _compare("GreaterOrEqual"),
    _unary("HardSigmoid"),
    _unary("HardSwish"),
    _unary("Identity", affine=True, moves_only=True),
    _unary("IsInf", dtype="bool"),
    _unary("IsNaN", dtype="bool"),
    _unary("LeakyRelu"),
    _compare("Less"),
    _compare("LessOrEqual"),
    _unary("Log"),
    _variadic("Max", commutative=True),
    _variadic("Mean", commutative=True, affine=True),
    _variadic("Min", commutative=True),
    _unary("Mish"),
    _binary("Mod"),
    _binary("Mul", commutative=True, affine=True),
    _unary("Neg", affine=True),
    _unary("Not"),
    _binary("Or", commutative=True),
    _binary("PRelu"),
    _binary("Pow"),
    _unary("Reciprocal"),
    _unary("Relu"),
    _unary("Round"),
    _unary("Selu"),
    _unary("Shrink"),
    _unary("Sigmoid"),
    _unary("Sign"),
    _unary("Sin"),
    _unary("Sinh"),
    _unary("Softplus"),
    _unary("Softsign"),
    _unary("Sqrt"),
    _binary("Sub", affine=True),
    _variadic("Sum", commutative=True, affine=True),
    _unary("Swish"),
    _unary("Tan"),
    _unary("Tanh"),
    _unary("ThresholdedRelu"),
    OpInfo("", "Where", "elementwise", (3, 3), broadcasts=True, data_inputs=(1, 2)),
    _binary("Xor", commutative=True),
)

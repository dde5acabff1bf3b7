"""The operators of one element, and where they may be put."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

INF = math.inf
INTS = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
SIGNED = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8", "int16")
SINGLE = ("float32", "float16", "bfloat16")
DOUBLE = (*SINGLE, "float64")
ANY = (*DOUBLE, *INTS)
#: Of elements of a kind that a function takes: any, above zero, within one of zero.
REAL, POSITIVE, UNIT = "real", "positive", "unit"


@dataclass(frozen=True)
class Unary:
    """One operator of one operand.

    Args:
        op: Its type.
        bound: Of the result's magnitude from the operand's.
        dtypes: Of the operand.
        domain: What its operand has to be for the result to be a number.
        largest: The magnitude from which on the result says little.
        attributes: Each with what it may be; a draw may leave it out.
        result: The result's dtype if it is not the operand's.
    """

    op: str
    bound: Callable[[float], float]
    dtypes: tuple[str, ...] = SINGLE
    domain: str = REAL
    largest: float = INF
    attributes: tuple[tuple[str, tuple[float | str | int, ...]], ...] = ()
    result: str = ""
    is_positive: bool = False


def same(x: float) -> float:
    """Return the operand's bound."""
    return x


def one(_x: float) -> float:
    """Return the bound of what stays within one of zero."""
    return 1.0


UNARY = (
    Unary("Abs", same, ANY),
    Unary("Neg", same, SIGNED),
    Unary("Relu", same, (*DOUBLE, "int32", "int8")),
    Unary("Sign", one, ANY),
    Unary("Identity", same, (*ANY, "bool")),
    Unary("Floor", lambda x: x + 1, DOUBLE),
    Unary("Ceil", lambda x: x + 1, DOUBLE),
    Unary("Round", lambda x: x + 1, DOUBLE),
    Unary("Sqrt", math.sqrt, DOUBLE, domain=POSITIVE),
    Unary("Reciprocal", lambda _x: 20.0, DOUBLE, domain=POSITIVE),
    Unary("Exp", math.exp, DOUBLE, largest=8.0, is_positive=True),
    Unary("Log", lambda x: abs(math.log(x + 20)), DOUBLE, domain=POSITIVE),
    Unary("Tanh", one, DOUBLE),
    Unary("Sigmoid", one, DOUBLE),
    Unary("Erf", one),
    Unary("Gelu", same, SINGLE, attributes=(("approximate", ("none", "tanh")),)),
    Unary("HardSigmoid", one, SINGLE,
          attributes=(("alpha", (0.3,)), ("beta", (0.4, 0.0)))),
    Unary("HardSwish", same, SINGLE),
    Unary("LeakyRelu", same, SINGLE, attributes=(("alpha", (0.2, 0.0)),)),
    Unary("Elu", same, SINGLE, attributes=(("alpha", (0.5,)),)),
    Unary("Selu", lambda x: 2 * x + 2, SINGLE, attributes=(("gamma", (1.5,)),)),
    Unary("Celu", lambda x: x + 2, ("float32",), attributes=(("alpha", (0.7,)),)),
    Unary("Softplus", lambda x: x + 1, SINGLE),
    Unary("Softsign", one, SINGLE),
    Unary("ThresholdedRelu", same, SINGLE, attributes=(("alpha", (0.5,)),)),
    Unary("Shrink", same, SINGLE, attributes=(("lambd", (0.7,)), ("bias", (0.3,)))),
    Unary("Mish", same, SINGLE),
    Unary("Swish", same, SINGLE, attributes=(("alpha", (1.5,)),)),
    Unary("Sin", one, SINGLE, largest=100.0),
    Unary("Cos", one, SINGLE, largest=100.0),
    Unary("Tan", lambda _x: 1e3, SINGLE, domain=UNIT),
    Unary("Asin", lambda _x: 1.6, SINGLE, domain=UNIT),
    Unary("Acos", lambda _x: 3.2, SINGLE, domain=UNIT),
    Unary("Atan", lambda _x: 1.6, SINGLE),
    Unary("Sinh", math.exp, SINGLE, largest=8.0),
    Unary("Cosh", math.exp, SINGLE, largest=8.0),
    Unary("Asinh", same, SINGLE),
    Unary("Atanh", lambda _x: 10.0, SINGLE, domain=UNIT),
    Unary("Not", one, ("bool",)),
    Unary("IsNaN", one, SINGLE, result="bool"),
    Unary("IsInf", one, ("float32",), attributes=(("detect_negative", (0,)),), result="bool"),
    Unary("BitwiseNot", lambda _x: 1e9, ("int32", "int64", "uint8")),
)  # fmt: skip


@dataclass(frozen=True)
class Binary:
    """One operator of two operands of one dtype, or of several if `most` says so."""

    op: str
    bound: Callable[[float, float], float]
    dtypes: tuple[str, ...] = DOUBLE
    most: int = 2
    result: str = ""
    is_divided: bool = False
    """Whether the second operand must be away from zero."""
    attributes: tuple[tuple[str, tuple[float | str | int, ...]], ...] = ()


def _larger(a: float, b: float) -> float:
    return max(a, b)


def _logical(_a: float, _b: float) -> float:
    return 1.0


_WIDE = (*DOUBLE, "int32", "int64")
BINARY = (
    Binary("Add", lambda a, b: a + b, ANY),
    Binary("Sub", lambda a, b: a + b, (*DOUBLE, "int32", "int64")),
    Binary("Mul", lambda a, b: a * b, ANY),
    Binary("Div", lambda a, b: 20 * a, _WIDE, is_divided=True),
    Binary("Max", _larger, _WIDE, most=3),
    Binary("Min", _larger, _WIDE, most=3),
    Binary("Sum", lambda a, b: 3 * (a + b), SINGLE, most=3),
    Binary("Mean", lambda a, b: a + b, SINGLE, most=3),
    Binary("PRelu", lambda a, b: a * max(b, 1), SINGLE),
    Binary("Pow", lambda a, b: 1e3, ("float32",)),
    Binary("Mod", lambda a, b: b, ("int32", "int64", "uint8"), is_divided=True),
    Binary("Equal", _logical, (*_WIDE, "bool"), result="bool"),
    Binary("Less", _logical, _WIDE, result="bool"),
    Binary("LessOrEqual", _logical, _WIDE, result="bool"),
    Binary("Greater", _logical, _WIDE, result="bool"),
    Binary("GreaterOrEqual", _logical, _WIDE, result="bool"),
    Binary("And", _logical, ("bool",)),
    Binary("Or", _logical, ("bool",)),
    Binary("Xor", _logical, ("bool",)),
    Binary("BitwiseAnd", _larger, ("int32", "uint8", "int64")),
    Binary("BitwiseOr", lambda a, b: 2 * max(a, b), ("int32", "uint8", "int64")),
    Binary("BitwiseXor", lambda a, b: 2 * max(a, b), ("int32", "uint8", "int64")),
)

#: What networks are mostly made of.
USUAL = frozenset(
    {
        "Abs", "Add", "And", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Gelu", "Greater",
        "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
        "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Sigmoid", "Sign", "Sin",
        "Sqrt", "Sub", "Swish", "Tanh",
    }
)  # fmt: skip
USUAL_DTYPES = ("float32", "int64", "int32", "bool")

#: What a value may be converted to.
CASTS = ("float32", "float32", "float16", "bfloat16", "float64", "int32", "int64", "bool", "uint8")
#: Bounds that fit a dtype with room for what follows.
ROOM = {
    "float32": 1e6, "float16": 300.0, "bfloat16": 1e6, "float64": 1e9, "bool": 1.0,
    "int8": 100.0, "uint8": 200.0, "int16": 3e4, "uint16": 6e4,
}  # fmt: skip


def room(dtype: str) -> float:
    """Return the largest bound that a value of a dtype is let grow to."""
    return ROOM.get(dtype, 1e9)

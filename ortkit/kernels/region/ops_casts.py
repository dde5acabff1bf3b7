"""Conversions between element types, with ONNX Runtime's results on x86-64 wherever it has one.

A floating-point number beyond an integer type's range becomes what the processor makes of it:
the lowest number of the 32- or 64-bit type that it is converted to first, of which narrower
types keep the low bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ortkit.kernels.region.dtypes import (
    DTYPES,
    ELEMENT_TYPES,
    INTEGERS,
    bits_of,
    compute_dtype,
    rounded,
)
from ortkit.kernels.region.pointwise import Attributes, PointwiseOp, op
from ortkit.refusal import Refused

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr


def _cast_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    to = attributes["to"]
    if len(dtypes) != 1 or not isinstance(to, int) or to not in ELEMENT_TYPES:
        return Refused(f"conversion to element type {to}")
    return ELEMENT_TYPES[to]


def _cast_like_type(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
    if len(dtypes) != 2 or dtypes[1] not in DTYPES:
        return Refused(f"operands of type {', '.join(dtypes)}")
    return dtypes[1]


def _bit_cast_type(dtypes: Sequence[str], attributes: Attributes) -> str | Refused:
    to = ELEMENT_TYPES.get(int(attributes["to"]), f"element type {attributes['to']}")
    # Short floats are float32 here, and a bool is no byte.
    if len(dtypes) != 1 or not {dtypes[0], to} <= {*INTEGERS, "float32", "float64"}:
        return Refused(f"the bits of {', '.join(dtypes)} as {to}")
    if bits_of(dtypes[0]) != bits_of(to):
        return Refused(f"{dtypes[0]} and {to} differ in size")
    return to


def _bit_cast(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    return e.bitcast(operands[0], ELEMENT_TYPES[int(attributes["to"])])


def _cast(e: Emitter, attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    to = ELEMENT_TYPES[int(attributes["to"])]
    # Rounded although it stays in a register: a cast is there to lose something.
    return rounded(e, converted(e, operands[0], compute_dtype(to)), to)


def _cast_like(e: Emitter, _attributes: Attributes, operands: Sequence[Expr]) -> Expr:
    return converted(e, operands[0], e.dtype(operands[1]))


def converted(e: Emitter, x: Expr, to: str) -> Expr:
    """Return x as the type `to`, one that kernels compute with."""
    source = e.dtype(x)
    if source == to:
        return x
    if source == "bool":
        return e.select(x, e.constant(1, to), e.constant(0, to))
    if to == "bool":
        return e.not_equal(x, e.constant(0, source))
    if source.startswith("float") and not to.startswith("float"):
        return _to_integer(e, x, to)
    return e.cast(x, to)


def _to_integer(e: Emitter, x: Expr, to: str) -> Expr:
    bits = bits_of(to)
    signed = "int64" if bits == 64 else "int32"
    if to in ("int64", "int32"):
        return e.cast(x, to)
    if bits < 32:
        return e.cast(e.cast(x, "int32"), to)
    # Unsigned: the upper half by way of the lower, which signed conversion reaches.
    half = e.constant(2.0 ** (bits - 1), e.dtype(x))
    lower, upper = e.cast(e.cast(x, signed), to), e.cast(e.cast(x - half, signed), to)
    return e.select(x >= half, upper ^ e.constant(2 ** (bits - 1), to), lower)


CASTS: Mapping[str, PointwiseOp] = {
    "BitCast": op(0, _bit_cast_type, _bit_cast, to=0),
    "Cast": op(1, _cast_type, _cast, to=0, saturate=1),
    "CastLike": op(1, _cast_like_type, _cast_like, saturate=1),
}

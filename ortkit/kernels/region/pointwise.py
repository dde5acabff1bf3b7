"""What a pointwise operator is to the kernels: types, cost, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ortkit.refusal import Refused

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr

Attributes: TypeAlias = Mapping[str, float | int | str]
TypeRule: TypeAlias = Callable[[Sequence[str], Attributes], "str | Refused"]
Write: TypeAlias = "Callable[[Emitter, Attributes, Sequence[Expr]], Expr]"


@dataclass(frozen=True)
class PointwiseOp:
    """One operator.

    Args:
        flops: Cost of one element in simple vector operations, each about 20 ps of a core (server
            processor with AVX-512, 2026-11).
        result: The result's dtype from the operands' dtypes, or why there is none; dtypes as ONNX
            names them.
        write: Emits it; the operands are shared values or constants of `compute_dtype`.
        attributes: The attributes it knows and their defaults; any other attribute is refused.
    """

    flops: int
    result: TypeRule
    write: Write
    attributes: Mapping[str, float | int | str]


def op(flops: int, result: TypeRule, write: Write, **attributes: float | int | str) -> PointwiseOp:
    """Return an operator with these attributes."""
    return PointwiseOp(flops, result, write, attributes)


def alike(allowed: Sequence[str], count: int | None, result: str | None = None) -> TypeRule:
    """Expect `count` operands (None: one or more) of one dtype out of `allowed`."""

    def rule(dtypes: Sequence[str], _attributes: Attributes) -> str | Refused:
        if len(dtypes) != count and (count is not None or not dtypes):
            return Refused(f"{len(dtypes)} operands")
        if len(set(dtypes)) > 1 or dtypes[0] not in allowed:
            return Refused(f"operands of type {', '.join(dtypes)}")
        return result or dtypes[0]

    return rule


def unary(
    flops: int, allowed: Sequence[str], function: Callable[[Emitter, Expr], Expr]
) -> PointwiseOp:
    """Return an operator of one operand and no attributes that keeps the type."""
    return op(flops, alike(allowed, 1), lambda e, _, x: function(e, x[0]))


def binary(
    flops: int, allowed: Sequence[str], function: Callable[[Emitter, Expr, Expr], Expr]
) -> PointwiseOp:
    """Return an operator of two operands of one type and no attributes that keeps the type."""
    return op(flops, alike(allowed, 2), lambda e, _, x: function(e, x[0], x[1]))


def number(attributes: Attributes, name: str) -> float:
    """Return a float attribute."""
    return float(attributes[name])

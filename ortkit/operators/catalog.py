"""The table: one row for each operator that something is known of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from ortkit.operators import contrib, elementwise, other, reduction, shape
from ortkit.operators.info import OpInfo

_ROWS = (
    *elementwise.ELEMENTWISE,
    *shape.SHAPE,
    *reduction.REDUCTION,
    *reduction.NORMALIZATION,
    *other.PRODUCTS,
    *other.CONTROL,
    *other.QUANTIZE,
    *other.RANDOM,
    *contrib.CONTRIB,
    *contrib.ADDED,
)
CATALOG: Mapping[tuple[str, str], OpInfo] = {(row.domain, row.op_type): row for row in _ROWS}
_FACTS = frozenset(field.name for field in fields(OpInfo))


def operator(domain: str, op_type: str) -> OpInfo | None:
    """Return the row of an operator, None if nothing is known of it."""
    return CATALOG.get(("" if domain == "ai.onnx" else domain, op_type))


def where(*, domain: str = "", **facts: object) -> frozenset[str]:
    """Return the names of a domain's operators for which all facts hold.

    Args:
        domain: ONNX's own unless another is given.
        facts: A field of `OpInfo` and its value; a set of values stands for any of them.

    Raises:
        TypeError: There is no such fact.
    """
    if unknown := facts.keys() - _FACTS:
        raise TypeError(f"no such fact: {', '.join(sorted(unknown))}")
    return frozenset(
        row.op_type
        for row in _ROWS
        if row.domain == domain
        and all(_holds(getattr(row, name), wanted) for name, wanted in facts.items())
    )


def _holds(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, (set, frozenset)) else value == wanted

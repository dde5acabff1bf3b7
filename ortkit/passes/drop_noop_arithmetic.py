"""drop-noop-arithmetic: remove x + 0, x - 0, x * 1, x / 1, x ** 1 and their like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Op -> (the neutral number, whether it may also stand on the left).
NEUTRAL = {
    "Add": (0, True),
    "Sub": (0, False),
    "Mul": (1, True),
    "Div": (1, False),
    "Pow": (1, False),
    "And": (True, True),
    "Or": (False, True),
}


@dataclass(frozen=True)
class DropNoopArithmetic(NodePass):
    """Remove arithmetic with the op's neutral element, and negations that cancel.

    Before:
        t = Mul(x, 1);  u = Add(0, t);  v = Not(Not(u))
    After:
        v = u = x

    Skips:
        * A constant whose shape or type would widen the result.
        * `x + 0` keeps every value but turns -0 into +0, which compare equal.

    Source:
        ONNX Add, Sub, Mul, Div-7 ... 14, Pow-7 ... 15, And, Or-7, Not-1, Neg-1 ... 13.
    """

    name: ClassVar[str] = "drop-noop-arithmetic"
    ops: ClassVar[Sequence[str]] = (*NEUTRAL, "Not", "Neg")

    def rewrite(self, site: Site) -> None:
        value = _cancelled(site) if site.node.op_type in ("Not", "Neg") else _kept_operand(site)
        if value is None:
            return
        if site.can_replace(value) and site.claim(site.node.op_type.lower()):
            site.replace(value)


def _cancelled(site: Site) -> ir.Value | None:
    inner = site.producer(site.input(0), site.node.op_type)
    return None if inner is None else inner.inputs[0]


def _kept_operand(site: Site) -> ir.Value | None:
    """Return the operand that equals the result, None if there is none."""
    neutral, commutes = NEUTRAL[site.node.op_type]
    for constant, other in ((1, 0), (0, 1)) if commutes else ((1, 0),):
        kept = site.input(other)
        if kept is None or not _is_all(site, site.input(constant), neutral):
            continue
        before, after = site.shape(kept), site.shape(site.output)
        is_number = site.rank(site.input(constant)) == 0
        if is_number or (before is not None and before == after):
            return kept
    return None


def _is_all(site: Site, value: ir.Value | None, number: float) -> bool:
    if value is not None and (size := _elements(site, value)) is not None and size > 1 << 20:
        return False
    array = site.array(value)
    return array is not None and array.size > 0 and bool((array == number).all())


def _elements(site: Site, value: ir.Value) -> int | None:
    size = 1
    for extent in site.shape(value) or ():
        if not isinstance(extent, int):
            return None
        size *= extent
    return size

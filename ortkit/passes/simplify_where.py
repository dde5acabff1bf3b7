"""simplify-where: conditions without Not, Casts to and fro and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: What a comparison is when it is negated. Not so of `<` and `>`: NaN compares false either way.
OPPOSITE = {"Less": "GreaterOrEqual", "Greater": "LessOrEqual",
            "LessOrEqual": "Greater", "GreaterOrEqual": "Less"}  # fmt: skip
INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
OR_EQUAL_SINCE = 12
#: Larger conditions are not read to see whether all elements are alike.
LIMIT = 1 << 20


@dataclass(frozen=True)
class SimplifyWhere(NodePass):
    """Write conditions with as few nodes as they need.

    Before:
        y = Where(Not(c), a, b)
        z = Equal(Cast<to = INT64>(c), 1)              # c: bool
        w = And(c, true);  v = Not(Less(i, j))         # i, j: integers
    After:
        y = Where(c, b, a)
        z = c
        w = c;  v = GreaterOrEqual(i, j)

    Skips:
        * Comparisons of floats: with NaN neither they nor their opposites hold.
        * A condition that broadcasts the branch it would choose.
        * A comparison that others read: it would stay.

    Source:
        ONNX Where-9 ... 16, Not-1, And-7, Or-7, Xor-7, Equal-7 ... 19.
    """

    name: ClassVar[str] = "simplify-where"
    ops: ClassVar[Sequence[str]] = ("Where", "Not", "And", "Or", "Xor", "Equal")

    def rewrite(self, site: Site) -> None:
        if site.node.op_type == "Where":
            _where(site)
        elif site.node.op_type == "Not":
            _not(site)
        elif site.node.op_type == "Equal":
            _equal(site)
        else:
            _logic(site)


def _where(site: Site) -> None:
    condition, *branches = site.node.inputs
    negated = site.producer(condition, "Not")
    if negated is not None and len(branches) == 2:
        if site.claim("not"):
            site.scope.set_inputs(site.node, [negated.inputs[0], *reversed(branches)])
        return
    known = _uniform(site, condition)
    chosen = None if known is None else branches[0 if known else 1]
    if chosen is not None:
        _stand_for(site, chosen, "constant-condition")
        return
    if branches[0] is branches[1] and branches[0] is not None:
        _stand_for(site, branches[0], "same-branches")


def _not(site: Site) -> None:
    inner = site.producer(site.input(0), "Not", *OPPOSITE)
    if inner is None:
        return
    if inner.op_type == "Not" and inner.inputs[0] is not None:
        _stand_for(site, inner.inputs[0], "twice")
        return
    dtype = site.dtype(inner.inputs[0]) if inner.inputs else None
    if dtype not in INTEGERS:
        site.miss("it negates a comparison of floats, which may be NaN")
    elif not site.only_use(inner.outputs[0]):
        site.miss("others read the comparison")
    elif site.opset >= OR_EQUAL_SINCE and site.claim("comparison"):
        site.replace(site.op(OPPOSITE[inner.op_type], inner.inputs))


def _logic(site: Site) -> None:
    """Drop constant operands: true of And, false of Or and Xor; the others decide or negate."""
    for index in (0, 1):
        other = site.input(1 - index)
        known = _uniform(site, site.input(index))
        if known is None or other is None:
            continue
        neutral = site.node.op_type == "And"
        if known == neutral:
            _stand_for(site, other, "neutral")
        elif site.node.op_type == "Xor" and _same_shape(site, other):
            if site.claim("negated"):
                site.replace(site.op("Not", [other]))
        elif site.node.op_type != "Xor" and (constant := site.input(index)) is not None:
            _stand_for(site, constant, "decided")
        return


def _equal(site: Site) -> None:
    """Compare a bool, as it is or cast to a number, with a constant 0 or 1."""
    for index in (0, 1):
        value, number = site.input(index), site.scalar(site.input(1 - index))
        if number not in (0, 1) or value is None:
            continue
        source = value
        if (cast := site.producer(value, "Cast")) is not None and cast.inputs[0] is not None:
            source = cast.inputs[0]
        if site.dtype(source) != ir.DataType.BOOL or not _same_shape(site, source):
            continue
        if number == 1:
            _stand_for(site, source, "bool")
        elif site.claim("bool-is-false"):
            site.replace(site.op("Not", [source]))
        return


def _uniform(site: Site, value: ir.Value | None) -> bool | None:
    """Return what all elements of a constant condition are, None where they differ."""
    array = site.array(value, LIMIT)
    if array is None or array.dtype != np.bool_ or array.size == 0:
        return None
    first = bool(array.reshape(-1)[0])
    return first if bool((array == first).all()) else None


def _stand_for(site: Site, value: ir.Value, rule: str) -> None:
    """Let `value` be the result, if it has its shape."""
    if not _same_shape(site, value):
        site.miss("it also broadcasts")
    elif site.can_replace(value) and site.claim(rule):
        site.replace(value)


def _same_shape(site: Site, value: ir.Value) -> bool:
    shape: Sequence[Size] | None = site.shape(value)
    return shape is not None and shape == site.shape(site.output)

"""Faults in some elements of a value: large ones, those beyond a bound, the rest of an axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from mutants.draft import Rng, Site
from mutants.kinds import Catalog

CATALOG = Catalog("conditional")

#: Added to an element, as a part of it.
_PART = 0.05
_HUGE = 1 << 40


def _elements(build: Callable[[Site, str], str]):
    """Change the elements of a value for which a condition holds."""

    def plant(site: Site, rng: Rng) -> bool:
        def changed(end: Site, good: str) -> str:
            wrong = end.before("Mul", good, end.like(1.0 + _PART, good))
            return end.before("Where", build(end, good), wrong, good)

        site.after(changed)
        return True

    return plant


def _above(number: float):
    def build(end: Site, good: str) -> str:
        return end.before("Greater", end.before("Abs", good), end.like(number, good))

    return build


_POINTWISE = ("Gelu", "Relu", "QuickGelu", "Conv", "MatMul", "Gemm", "Add", "Mul")
for _number in (5.0, 20.0, 50.0):
    CATALOG.fault(f"elements above {_number:g}", *_POINTWISE)(_elements(_above(_number)))


@CATALOG.fault("beyond the upper bound of Clip", "Clip")
def _beyond(site: Site, rng: Rng) -> bool:
    bound = site.array(2)
    if bound is None:
        return False
    site.set_array(2, np.asarray(bound * 2, bound.dtype))
    return True


@CATALOG.fault("beyond the lower bound of Clip", "Clip")
def _below(site: Site, rng: Rng) -> bool:
    site.node.input[1] = ""
    return True


@CATALOG.fault("softmax that overflows", "Softmax")
def _overflow(site: Site, rng: Rng) -> bool:
    """Leave the subtraction of the largest out."""
    axis = site.attribute("axis", -1)
    powers = site.before("Exp", site.node.input[0])
    total = site.before("ReduceSum", powers, site.numbers(axis), keepdims=1)
    site.become("Div", powers, total)
    return True


@CATALOG.fault("variance as a difference of means", "LayerNormalization")
def _cancels(site: Site, rng: Rng) -> bool:
    """Lose digits where a row's mean is large."""
    if len(site.node.output) > 1:
        return False
    x, scale, *bias = site.node.input
    axis = site.numbers(-1)
    mean = site.before("ReduceMean", x, axis)
    squares = site.before("ReduceMean", site.before("Mul", x, x), axis)
    spread = site.before("Sub", squares, site.before("Mul", mean, mean))
    safe = site.before("Add", spread, site.like(site.attribute("epsilon", 1e-5), x))
    found = site.before("Div", site.before("Sub", x, mean), site.before("Sqrt", safe))
    found = site.before("Mul", found, scale)
    site.become("Add", found, bias[0]) if bias else site.become("Identity", found)
    return True


def _last(axis: int, number: int):
    """Change what lies behind a place of an axis: a rest that is computed by another loop."""

    def plant(site: Site, rng: Rng) -> bool:
        if not isinstance(site.holder, onnx.GraphProto):
            return False
        ends = (site.numbers(number), site.numbers(_HUGE), site.numbers(axis))

        def changed(end: Site, good: str) -> str:
            head = end.before("Slice", good, end.numbers(0), ends[0], ends[2])
            tail = end.before("Slice", good, *ends)
            wrong = end.before("Mul", tail, end.like(1.0 + _PART, good))
            return end.before("Concat", head, wrong, axis=axis)

        site.after(changed)
        return True

    return plant


_LINES = ("MatMul", "LayerNormalization", "RMSNormalization", "Gelu", "Add", "Conv", "Relu")
CATALOG.fault("batch entries from the third on", *_LINES)(_last(0, 2))
CATALOG.fault("positions from the seventeenth on", *_LINES)(_last(1, 16))

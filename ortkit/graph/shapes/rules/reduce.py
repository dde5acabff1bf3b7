"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold

import onnx_ir as ir

from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import (
    INTEGERS,
    Call,
    Element,
    Rule,
    Shape,
    UnknownError,
    normal_axis,
)
from ortkit.graph.shapes.rules.elementwise import same

INT64 = ir.DataType.INT64
Operation = Callable[[Element, Element], Element]


def _reduced_axes(call: Call, rank: int) -> set[int] | None:
    """Return the axes reduced, None if unknown."""
    axes = call.integers("axes")
    if axes is None and call.has(1):
        elements = call.fact(1).elements
        if elements is None or not all(isinstance(axis, int) for axis in elements):
            return None
        axes = call.numbers(1)
    if not axes:
        return set() if call.integer("noop_with_empty_axes", 0) else set(range(rank))
    return {normal_axis(axis, rank) for axis in axes}


def _after(shape: Shape, axes: set[int], keeps: bool) -> Shape:
    if keeps:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduce(operation: Operation | None = None) -> Rule:
    def rule(call: Call) -> None:
        fact = call.fact(0)
        call.out(dtype=fact.dtype)
        keeps = call.integer("keepdims", 1) != 0
        if fact.shape is None:
            # Without axes everything is reduced, whatever the rank is.
            attribute = call.attribute("axes")
            given = attribute is not None or call.has(1)
            if not keeps and not given and not call.integer("noop_with_empty_axes", 0):
                call.out(shape=())
            return
        axes = _reduced_axes(call, len(fact.shape))
        if axes is None:
            if keeps:
                call.out(shape=tuple(call.fresh() for _ in fact.shape))
            return
        call.out(shape=_after(fact.shape, axes, keeps))
        whole = len(axes) == len(fact.shape)
        if operation is not None and whole and fact.elements and fact.dtype in INTEGERS:
            _fold(call, operation, fact.elements, fact.dtype)

    return rule


def _fold(
    call: Call, operation: Operation, elements: tuple[Element, ...], dtype: ir.DataType | None
) -> None:
    if not el.can_compute(dtype):
        return
    total = fold(operation, elements)
    limit = 2**63 if dtype == INT64 else 2**31
    if isinstance(total, int) and not -limit <= total < limit:
        raise UnknownError
    call.out(elements=(total,))


def _arg_reduce(call: Call) -> None:
    call.out(dtype=INT64)
    shape = call.shape(0)
    axis = normal_axis(call.integer("axis", 0), len(shape))
    call.out(shape=_after(shape, {axis}, call.integer("keepdims", 1) != 0))


RULES: dict[str, Rule] = {
    "ReduceSum": _reduce(el.added),
    "ReduceProd": _reduce(el.multiplied),
    "ReduceMax": _reduce(el.larger),
    "ReduceMin": _reduce(el.smaller),
    "ReduceMean": _reduce(),
    "ReduceL1": _reduce(),
    "ReduceL2": _reduce(),
    "ReduceLogSum": _reduce(),
    "ReduceLogSumExp": _reduce(),
    "ReduceSumSquare": _reduce(),
    "ArgMax": _arg_reduce,
    "ArgMin": _arg_reduce,
    "CumSum": same,
    "CumProd": same,
    "Softmax": same,
    "LogSoftmax": same,
    "Hardmax": same,
}

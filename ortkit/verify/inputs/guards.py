"""Numbers that a model compares its inputs with, so that made-up inputs lie on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.operators import where

_Inverse = Callable[[float], float]

#: Guards of one input at most; larger constants are cut.
_MOST_GUARDS = 16
#: Values that are followed from one input at most.
_MOST_VALUES = 4096
_COMPARISONS = frozenset({
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod",
    "BitShift",
})  # fmt: skip
_CARRIERS = where(moves_only=True) | {
    "Cast", "CastLike", "Ceil", "Dropout", "Floor", "Pad", "Round",
}  # fmt: skip
#: Operators that treat numbers below and above 0 differently.
_AT_ZERO = frozenset({
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sign", "ThresholdedRelu",
})  # fmt: skip
#: Numbers that lie between two integers, which a Round makes even ones.
_HALVES = (-1.5, -0.5, 0.5, 1.5, 2.5)
_INVERSES: Mapping[str, _Inverse] = {
    "Neg": lambda t: -t,
    "Abs": lambda t: t,
    "Relu": lambda t: t,
    "Reciprocal": lambda t: 1 / t,
    "Sqrt": lambda t: t * t,
    "Exp": math.log,
    "Log": math.exp,
    "Tanh": math.atanh,
    "Sigmoid": lambda t: math.log(t / (1 - t)),
}
#: Operators that compute each element from one element of each input, or move elements.
#: Of types that an attribute names only Cast, which `_makes_integers` looks at.
_ELEMENTWISE = (
    where(access="elementwise", dtype=frozenset({"input", "bool"}))
    | where(domain="com.microsoft", access="elementwise")
    | where(moves_only=True)
    | {"Cast", "Constant", "Shape"}
)


def guards_of(value: ir.Value, model: ir.Model) -> tuple[float, ...]:
    """Return the numbers at which comparisons decide about a graph input's elements.

    A comparison is found behind operators that move elements, and behind those of one variable
    and a constant whose inverse is known.
    """
    found: dict[float, None] = {}
    waiting: list[tuple[ir.Value, _Way]] = [(value, _Way(lambda t: t, None))]
    seen: set[ir.Value] = set()
    while waiting and len(seen) < _MOST_VALUES:
        current, way = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, index in current.uses():
            for guard in _thresholds(node, index):
                with suppress(ValueError, ZeroDivisionError, OverflowError):
                    found[way.back(guard)] = None
            function = model.functions.get(node.op_identifier())
            if function is not None:
                waiting += [(each, way) for each in function.inputs[index : index + 1]]
            step = _inverse(node, index)
            if step is not None:
                waiting += [(each, _Way(step, way)) for each in node.outputs]
    finite = [guard for guard in found if math.isfinite(guard)]
    return tuple(finite[:_MOST_GUARDS])


def is_elementwise(model: ir.Model) -> bool:
    """Say whether each element of the outputs depends on few elements of the inputs.

    Such models give results that can be compared where inputs are infinite or no number. One
    that turns floats into integers does not: what becomes of NaN is not defined.
    """
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    return all(
        node.op_type in _ELEMENTWISE and not _makes_integers(node)
        for graph in graphs
        for node in graph
        if node.op_identifier() not in model.functions
    )


def _makes_integers(node: ir.Node) -> bool:
    if node.op_type != "Cast":
        return False
    return not ir.DataType(node.attributes.get_int("to", 1)).is_floating_point()


@dataclass(frozen=True, eq=False)
class _Way:
    """The inverses of operators between a graph input and a value; there may be thousands."""

    step: _Inverse
    before: _Way | None

    def back(self, number: float) -> float:
        """Return the number of the input that gives one of the value."""
        way: _Way | None = self
        while way is not None:
            number, way = way.step(number), way.before
        return number


def _thresholds(node: ir.Node, index: int) -> Iterator[float]:
    """Yield the numbers that a node compares its input `index` with."""
    others = [each for i, each in enumerate(node.inputs) if i != index]
    if node.op_type in _COMPARISONS:
        for each in others:
            yield from _numbers(each)
    elif node.op_type == "Clip" and index == 0:
        for each in others:
            yield from _numbers(each)
        yield from _attributes(node, ("min", "max"))
    elif node.op_type == "Round":
        yield from _HALVES
    elif node.op_type == "HardSwish":
        yield from (-3.0, 3.0)
    elif node.op_type == "HardSigmoid":
        alpha = node.attributes.get_float("alpha", 0.2)
        beta = node.attributes.get_float("beta", 0.5)
        if alpha:
            yield from (-beta / alpha, (1 - beta) / alpha)
    elif node.op_type == "Shrink":
        limit = node.attributes.get_float("lambd", 0.5)
        yield from (-limit, limit)
    if node.op_type == "ThresholdedRelu":
        yield node.attributes.get_float("alpha", 1.0)
    elif node.op_type in _AT_ZERO and index == 0:
        yield 0.0


def _attributes(node: ir.Node, names: Sequence[str]) -> Iterator[float]:
    for name in names:
        if name in node.attributes:
            yield node.attributes.get_float(name, 0.0)


def _numbers(value: ir.Value | None) -> tuple[float, ...]:
    """Return the different numbers of a small constant."""
    array = constant_array(value, limit=_MOST_VALUES) if value is not None else None
    if array is None or array.dtype.kind not in "iuf" or array.size == 0:
        return ()
    return tuple(float(number) for number in np.unique(array)[:_MOST_GUARDS])


def _inverse(node: ir.Node, index: int) -> _Inverse | None:
    """Return how to get a node's input from its output; None where that is not known."""
    if node.op_type in _CARRIERS and (index == 0 or node.op_type == "Concat"):
        return lambda t: t
    if node.op_type in _INVERSES and index == 0:
        return _INVERSES[node.op_type]
    if len(node.inputs) != 2:
        return None
    known = _numbers(node.inputs[1 - index])
    if len(known) != 1:
        return None
    (c,) = known
    match node.op_type, index:
        case "Add", _:
            return lambda t: t - c
        case "Sub", 0:
            return lambda t: t + c
        case "Sub", 1:
            return lambda t: c - t
        case "Mul", _:
            return lambda t: t / c
        case "Div", 0:
            return lambda t: t * c
        case "Div", 1:
            return lambda t: c / t
        case "Pow", 0:
            return lambda t: float(t ** (1 / c))
    return None

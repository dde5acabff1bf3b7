"""Which numbers a mask may hold, as far as the ops that it is made by tell."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.operators import where

#: Numbers kept one by one.
MOST = 16
#: Elements of an array that are looked at one by one.
FEW = 256
#: Positions and lengths are less.
LONGEST = 2.0**31


@dataclass(frozen=True)
class Held:
    """The numbers that a value may hold, NaN left aside."""

    numbers: tuple[float, ...]
    """In order."""
    has_between: bool = False
    """Whether it may hold any number between these, too."""

    @staticmethod
    def of(array: np.ndarray) -> Held | None:
        """Return what an array holds, None if that are no numbers."""
        if array.dtype.kind not in "fiub" or not array.size:
            return None
        if array.size > FEW:
            return _extremes(array)
        found = array.astype(np.float64).reshape(-1)
        return _held(found[~np.isnan(found)].tolist(), has_between=False)

    @property
    def is_infinite(self) -> bool:
        """Whether -inf may be among them."""
        return bool(self.numbers) and self.numbers[0] == -np.inf

    def reaches(self, lowest: float) -> bool:
        """Say whether a finite number that is not above `lowest` may be among them."""
        if self.has_between and self.is_infinite:
            return True
        return any(-np.inf < number <= lowest for number in self.numbers)

    def joined(self, other: Held) -> Held | None:
        """Return what holds numbers of both."""
        has_between = self.has_between or other.has_between
        return _held((*self.numbers, *other.numbers), has_between=has_between)


def _extremes(array: np.ndarray) -> Held | None:
    """Return the lowest and the highest number, and whether there are others."""
    low, high = np.nanmin(array), np.nanmax(array)
    if np.isnan(low):
        return Held(())
    is_all = bool(((array == low) | (array == high) | (array != array)).all())
    return _held((float(low), float(high)), has_between=not is_all)


def combined(
    function: Callable[[float, float], float], left: Held, right: Held, dtype: ir.DataType
) -> Held | None:
    """Return what a function, monotonic in each number, makes of two values.

    Args:
        function: What is computed.
        left: The first value.
        right: The second value.
        dtype: The element type that is computed in: what is too large for it is infinite.
    """
    if dtype.numpy().kind == "c":
        return None  # no order, so no bounds
    with np.errstate(all="ignore"):
        made = [
            float(dtype.numpy().type(function(np.float64(a), np.float64(b))))
            for a, b in itertools.product(left.numbers, right.numbers)
        ]
    has_between = left.has_between or right.has_between
    return _held(made, has_between=has_between)


def held_by(
    cone: Sequence[ir.Node],
    known: Callable[[ir.Value], Held | None],
    dtype_of: Callable[[ir.Value], ir.DataType | None],
) -> Held | None:
    """Return what the last of `cone` makes, None if that may be anything.

    Args:
        cone: Nodes with one output each, in order.
        known: What values hold that none of them makes: constants, sizes, integer inputs.
        dtype_of: The element type of a value.
    """
    found: dict[ir.Value, Held | None] = {}
    for node in cone:
        output = node.outputs[0]
        dtype = dtype_of(output)
        found[output] = known(output)
        if found[output] is None and dtype is not None and _is_followed(node, dtype):
            given = [
                None if value is None else found.get(value) or known(value)
                for value in node.inputs
            ]
            found[output] = _made(node, given, dtype)
    return found[cone[-1].outputs[0]] if cone else None


def _held(numbers: Iterable[float], *, has_between: bool) -> Held | None:
    found = sorted(set(numbers))
    if any(np.isnan(number) for number in found):
        return None
    if len(found) <= MOST:
        return Held(tuple(found), has_between)
    return Held((found[0], found[-1]), has_between=True)


def _is_followed(node: ir.Node, dtype: ir.DataType) -> bool:
    """Say whether it is known what such a node makes; weights of others are not looked at."""
    known = node.op_type in FIRST or node.op_type in MONOTONIC or node.op_type in OTHERS
    return node.domain == "" and (known or dtype == ir.DataType.BOOL)


def _made(node: ir.Node, given: Sequence[Held | None], dtype: ir.DataType) -> Held | None:
    if node.domain != "":
        return None
    if dtype == ir.DataType.BOOL:
        return Held((0.0, 1.0))
    if node.op_type in FIRST:
        return given[0]
    if node.op_type == "Cast":
        return None if given[0] is None else combined(operator.mul, given[0], ONE, dtype)
    if node.op_type == "ConstantOfShape":
        attribute = node.attributes.get("value")
        return Held((0.0,)) if attribute is None else Held.of(attribute.as_tensor().numpy())
    if node.op_type in ("Range", "CumSum", "Shape", "Size"):
        return Held((-LONGEST, LONGEST), has_between=True)
    if node.op_type == "Trilu":
        return None if given[0] is None else given[0].joined(Held((0.0,)))
    if node.op_type in ("Where", "Concat"):
        return _any_of(given[1:] if node.op_type == "Where" else given)
    if node.op_type == "Neg":
        return None if given[0] is None else combined(operator.mul, given[0], MINUS, dtype)
    function = MONOTONIC.get(node.op_type)
    if function is None or not given or given[0] is None:
        return None
    total = given[0]
    for other in given[1:]:
        made = None if other is None else combined(function, total, other, dtype)
        if made is None:
            return None
        total = made
    return total


def _any_of(given: Sequence[Held | None]) -> Held | None:
    total = given[0]
    for other in given[1:]:
        total = None if total is None or other is None else total.joined(other)
    return total


ONE, MINUS = Held((1.0,)), Held((-1.0,))
#: Ops whose result holds elements of their first input.
FIRST = where(moves_only=True) - {"Concat", "Split"}
#: Others that `_made` knows.
OTHERS = frozenset(
    {
        "Cast", "Concat", "ConstantOfShape", "CumSum", "Neg", "Range", "Shape", "Size", "Trilu",
        "Where",
    }
)  # fmt: skip
MONOTONIC: Mapping[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Max": max,
    "Min": min,
    "Mul": operator.mul,
    "Sub": operator.sub,
    "Sum": operator.add,
}

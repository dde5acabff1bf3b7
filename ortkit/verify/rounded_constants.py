"""Constants that one of two graphs has, and the other has not or has rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, constant_tensor
from ortkit.verify.accuracy import SENTINEL
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import float_constants, half_constants

#: Numbers of masks are kept a few roundings away from the largest one: a lowering takes
#: -65472 for the lowest float16, and -3.3e38 for the lowest bfloat16.
_SATURATED_PART = 0.97
#: Epsilons of the type that constants were rounded to, as a part of a row's scale.
_CONSTANTS_CAP_EPS = 16.0


@dataclass(frozen=True, eq=False)
class Rounded:
    """A constant in half precision that only one of two graphs has."""

    dtype: ir.DataType
    """Its type."""
    changed: np.ndarray | None = None
    """The elements that a constant of the other graph has not, bool like it; None for all. A
    rewrite that keeps most elements has not rounded these."""


@dataclass(frozen=True)
class RoundedConstants:
    """Constants in half precision that only one of two graphs has, by name."""

    lost: Mapping[str, Rounded]
    new: Mapping[str, Rounded]

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self.lost or self.new)

    @property
    def cap(self) -> float:
        """How far their roundings may move a value, as a part of a row's scale."""
        types = {each.dtype for each in (*self.lost.values(), *self.new.values())}
        return _CONSTANTS_CAP_EPS * max(map(epsilon_of, types), default=0.0)

    @property
    def largest(self) -> float:
        """The largest number that the new ones hold; larger ones saturate."""
        return min((_largest(each.dtype) for each in self.new.values()), default=math.inf)


def rounded_constants(
    original: ir.Model, candidate: ir.Model, half: ir.DataType | None
) -> RoundedConstants:
    """Return the constants in half precision that only one of two graphs has.

    A rewrite rounds new ones, and puts an operator in the place of others: a Gelu in that of
    the square root of two. The numbers of both are off by a rounding. Where the candidate may
    compute in half precision, its new constants may also hold such numbers in float32.

    Args:
        original: The original, its floats upconverted.
        candidate: The candidate, its floats upconverted.
        half: The type that the candidate may compute in, if it is not the original's.
    """
    theirs: dict[ir.Value, ir.DataType] = dict(half_constants(candidate))
    mine = half_constants(original)
    if half is not None:
        theirs |= {
            value: half
            for value in float_constants(candidate)
            if value not in theirs and _is_in(_array(value), half)
        }
    if not theirs and not mine:
        return RoundedConstants({}, {})
    known = _Contents(float_constants(original))
    kept = _Contents(float_constants(candidate) if mine else ())
    lost = {value: dtype for value, dtype in mine.items() if value not in kept}
    new = {value: dtype for value, dtype in theirs.items() if value not in known}
    changed: dict[ir.Value, np.ndarray] = {}
    for value in new:
        for other in lost:
            if other not in changed and (mask := _few_changes(_array(value), _array(other))):
                changed[value] = changed[other] = mask[0]
                break
    return RoundedConstants(
        {v.name or "": Rounded(dtype, changed.get(v)) for v, dtype in lost.items()},
        {v.name or "": Rounded(dtype, changed.get(v)) for v, dtype in new.items()},
    )


def _few_changes(array: np.ndarray, other: np.ndarray) -> tuple[np.ndarray] | None:
    """Return where two arrays differ, if most of their elements are equal; else None."""
    if array.shape != other.shape or array.size < _FEWEST:
        return None
    first = array.reshape(-1)[:_FIRST] != other.reshape(-1)[:_FIRST]
    if 2 * np.count_nonzero(first) > first.size:
        return None
    mask = np.asarray(array != other)
    return (mask,) if 2 * np.count_nonzero(mask) <= mask.size else None


def half_weights(original: ir.Model, candidate: ir.Model) -> dict[str, ir.DataType]:
    """Return the weights that a lowering rounded to half precision, by name, and the type.

    They are in that type, or are matrices in float32 of numbers that bfloat16 has.

    Args:
        original: The original, its floats upconverted.
        candidate: The candidate, its floats upconverted.
    """
    found = dict(half_constants(candidate))
    for value in float_constants(candidate):
        tensor = constant_tensor(value)
        if value not in found and tensor is not None and len(tensor.shape) > 1:
            array = tensor.numpy()
            if _is_in(array, ir.DataType.BFLOAT16) and not _is_pattern(array):
                found[value] = ir.DataType.BFLOAT16
    known = _Contents(float_constants(original) if found else ())
    return {v.name or "": dtype for v, dtype in found.items() if v not in known}


def epsilon_of(dtype: ir.DataType) -> float:
    """Return the epsilon of a float type."""
    return TOLERANCES[dtype.numpy().name].epsilon


def _largest(dtype: ir.DataType) -> float:
    most = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
    return _SATURATED_PART * most


def _is_pattern(array: np.ndarray) -> bool:
    """Say whether an array holds integers or sentinels, as masks and permutations do."""
    return bool((array == np.floor(array)).all() or (np.abs(array) > SENTINEL).any())


def _is_in(array: np.ndarray, half: ir.DataType) -> bool:
    first, rest = array.reshape(-1)[:_FIRST], array.reshape(-1)[_FIRST:]
    with np.errstate(over="ignore"):  # a sentinel that becomes infinite is none of its values
        return all((each.astype(half.numpy()).astype(np.float32) == each).all()
                   for each in (first, rest))  # fmt: skip


#: Most weights that were not rounded show it in their first numbers.
_FIRST = 256
#: Smaller arrays may be equal in most elements by chance.
_FEWEST = 16


def _array(value: ir.Value) -> np.ndarray:
    array = constant_array(value)
    assert array is not None
    return array


class _Contents:
    """The numbers of constants. Those that begin alike are compared in full."""

    def __init__(self, values: Iterable[ir.Value]) -> None:
        self._by_start: dict[tuple[tuple[int, ...], bytes], list[ir.Value]] = {}
        for value in values:
            self._by_start.setdefault(_start(_array(value)), []).append(value)

    def __contains__(self, value: ir.Value) -> bool:
        """Say whether some constant has the shape and the numbers of this one."""
        array = _array(value)
        alike = self._by_start.get(_start(array), ())
        return any(_bits_equal(array, _array(each)) for each in alike)


def _start(array: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return array.shape, array.reshape(-1)[:_FIRST].tobytes()


def _bits_equal(array: np.ndarray, other: np.ndarray) -> bool:
    """Say whether two float32 arrays of one shape are equal, NaN beside NaN too."""
    bits, theirs = (np.ascontiguousarray(each).view(np.uint32) for each in (array, other))
    return bool(np.array_equal(bits, theirs))

"""Constants that one of two graphs has, and the other has not or has rounded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
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


@dataclass(frozen=True)
class RoundedConstants:
    """Constants in half precision that only one of two graphs has, by name, and their types."""

    lost: Mapping[str, ir.DataType]
    new: Mapping[str, ir.DataType]

    @property
    def cap(self) -> float:
        """How far their roundings may move a value, as a part of a row's scale."""
        types = {*self.lost.values(), *self.new.values()}
        return _CONSTANTS_CAP_EPS * max(map(epsilon_of, types), default=0.0)

    @property
    def largest(self) -> float:
        """The largest number that the new ones hold; larger ones saturate."""
        return min(map(_largest, set(self.new.values())), default=math.inf)


def rounded_constants(
    original: ir.Model, candidate: ir.Model, half: ir.DataType | None
) -> RoundedConstants:
    """Return the constants in half precision that only one of two graphs has.

    A rewrite rounds new ones, and puts an operator in the place of others: a Gelu in that of
    the square root of two. The numbers of both are off by a rounding. Where the candidate may
    compute in half precision, its new constants may also hold such numbers in float32.

    Args:
        original: Widened.
        candidate: Widened.
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
    known = {_content(value) for value in float_constants(original)}
    kept = {_content(value) for value in float_constants(candidate)} if mine else set()
    return RoundedConstants(
        {v.name or "": dtype for v, dtype in mine.items() if _content(v) not in kept},
        {v.name or "": dtype for v, dtype in theirs.items() if _content(v) not in known},
    )


def half_weights(original: ir.Model, candidate: ir.Model) -> dict[str, ir.DataType]:
    """Return the weights that a lowering rounded to half precision, by name, and the type.

    They are in that type, or are matrices in float32 of numbers that bfloat16 has.

    Args:
        original: Widened.
        candidate: Widened.
    """
    found = dict(half_constants(candidate))
    for value in float_constants(candidate):
        tensor = constant_tensor(value)
        if value not in found and tensor is not None and len(tensor.shape) > 1:
            array = tensor.numpy()
            if _is_in(array, ir.DataType.BFLOAT16) and not _is_pattern(array):
                found[value] = ir.DataType.BFLOAT16
    known = {_content(value) for value in float_constants(original)} if found else set()
    return {v.name or "": dtype for v, dtype in found.items() if _content(v) not in known}


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


def _array(value: ir.Value) -> np.ndarray:
    array = constant_array(value)
    assert array is not None
    return array


def _content(value: ir.Value) -> tuple[tuple[int, ...], bytes]:
    array = _array(value)
    return array.shape, hashlib.sha256(array.tobytes()).digest()

"""Constants in the layout of a kernel: how they are packed, and what a body makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value = TypeVar("Value")
#: Given the value's role, an operator, its inputs and attributes: makes a node.
Op: TypeAlias = Callable[[str, str, Sequence[Value], Mapping[str, Any]], Value]
#: Given the value's role and integers: makes a constant of them.
Constant: TypeAlias = Callable[[str, Sequence[int]], Value]
#: float32, as ONNX numbers element types.
_FLOAT = 1


@dataclass(frozen=True)
class Prepack:
    """A layout: Slice(Reshape(Transpose(Cast(packed)))) is the constant that an operator reads.

    What changes nothing is left out of these nodes. `then` may follow them. All sizes are known.

    Args:
        shape: Of the packed constant.
        perm: Of the Transpose.
        whole: What its result is reshaped to.
        result: What `whole` is cut to, which may have more behind it along each axis.
        dtype: Of the packed constant; the one that is read is float32 where this is bfloat16.
        axes: Of the Slice; None for all.
        then: Further nodes: "Reshape" and sizes, or "Transpose" and a permutation.
    """

    shape: tuple[int, ...]
    perm: tuple[int, ...]
    whole: tuple[int, ...]
    result: tuple[int, ...]
    dtype: str = ""
    axes: tuple[int, ...] | None = None
    then: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def transposed(self) -> tuple[int, ...]:
        """The sizes after the Transpose."""
        return tuple(self.shape[axis] for axis in self.perm)

    @property
    def bounds(self) -> tuple[tuple[int, ...], ...]:
        """What the Slice reads: starts, ends, and axes; nothing if there is none."""
        if self.whole == self.result:
            return ()
        axes = range(len(self.whole)) if self.axes is None else self.axes
        ends = tuple(self.result[axis] for axis in axes)
        return ((0,) * len(ends), ends, *(() if self.axes is None else (self.axes,)))

    @property
    def last_role(self) -> str:
        """The role of the value that an operator reads."""
        return "cut" if self.bounds else "rows" if self.whole == self.transposed else "whole"

    def pack(self, array: Array) -> Array:
        """Return a constant packed, a view where that can be; what it lacks of `whole` is 0."""
        array = array.astype(self.dtype or array.dtype, copy=False)
        for op_type, numbers, sizes in reversed(self._steps()):
            is_moved = op_type == "Transpose"
            array = array.transpose(np.argsort(numbers)) if is_moved else array.reshape(sizes)
        gaps = [(0, whole - size) for whole, size in zip(self.whole, array.shape, strict=True)]
        padded = np.pad(array, gaps) if any(gap for _, gap in gaps) else array
        return padded.reshape(self.transposed).transpose(np.argsort(self.perm))

    def _steps(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Return what follows, each with the sizes before it."""
        found, sizes = [], self.result
        for op_type, numbers in self.then:
            found.append((op_type, numbers, sizes))
            is_moved = op_type == "Transpose"
            sizes = tuple(sizes[axis] for axis in numbers) if is_moved else numbers
        return found

    def write(self, packed: Value, op: Op[Value], constant: Constant[Value]) -> Value:
        """Make the nodes that unpack a constant, and return what an operator reads.

        The roles of values are "wide", "rows", "shape", "whole", "first", "last", "axis", "cut".
        """
        value = op("wide", "Cast", [packed], {"to": _FLOAT}) if self.dtype else packed
        value = op("rows", "Transpose", [value], {"perm": [*self.perm]})
        if self.whole != self.transposed:
            value = op("whole", "Reshape", [value, constant("shape", self.whole)], {})
        if self.bounds:
            made: dict[tuple[int, ...], Value] = {}
            for role, numbers in zip(("first", "last", "axis"), self.bounds, strict=False):
                if numbers not in made:
                    made[numbers] = constant(role, numbers)
            value = op("cut", "Slice", [value, *(made[numbers] for numbers in self.bounds)], {})
        for op_type, numbers in self.then:
            if op_type == "Transpose":
                value = op("moved", op_type, [value], {"perm": [*numbers]})
            else:
                value = op("shaped", op_type, [value, constant("sizes", numbers)], {})
        return value

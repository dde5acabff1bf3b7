"""Which Reshape turns one symbolic shape into another."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where

#: Ops that keep the elements and their order, and change only the shape.
RESHAPES = tuple(sorted(where(reshapes=True)))


def static(sizes: Sequence[Size] | None) -> tuple[int, ...] | None:
    """Return sizes that are all numbers, else None."""
    if sizes is None:
        return None
    numbers = tuple(size for size in sizes if isinstance(size, int))
    return numbers if len(numbers) == len(sizes) else None


def reshape_target(source: Sequence[Size], wanted: Sequence[Size]) -> tuple[int, ...] | None:
    """Return a constant Reshape target from `source` to `wanted`, None if there is none.

    0 copies a size that stands at the same position, -1 stands for at most one other symbolic
    size. A static size of zero has no such target, since 0 means copy.
    """
    target: list[int] = []
    for axis, size in enumerate(wanted):
        if isinstance(size, int):
            if size == 0:
                return None
            target.append(size)
        elif axis < len(source) and source[axis] == size:
            target.append(0)
        elif -1 in target:
            return None
        else:
            target.append(-1)
    return tuple(target)


def refuses_empty(source: Sequence[Size], target: Sequence[int]) -> bool:
    """Say whether a Reshape may fail on an empty tensor of the shape `source`.

    ONNX Runtime refuses -1 beside a size of zero, and a size that 0 copies may be zero.
    """
    copied = [source[axis] for axis, size in enumerate(target) if size == 0]
    return -1 in target and any(not isinstance(size, int) for size in copied)


def inserted_axes(source: Sequence[Size], wanted: Sequence[Size]) -> tuple[int, ...] | None:
    """Return the axes of size 1 that `wanted` has beyond `source`, None if more is different."""
    axes: list[int] = []
    position = 0
    for axis, size in enumerate(wanted):
        if position < len(source) and source[position] == size:
            position += 1
        elif size == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if position == len(source) else None

"""Which element of an operand an element of a value is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ortkit.kernels.region.axes import Axes, Axis
from ortkit.kernels.region.program import (
    Broadcast,
    Concat,
    Lookup,
    Program,
    Reshape,
    Slice,
    Transpose,
)
from ortkit.refusal import RefusedError


@dataclass(frozen=True)
class Index:
    """A position along one axis: a sum of loops, each times a number, plus `offset`."""

    terms: tuple[tuple[Axis, int], ...]
    offset: int = 0

    def shifted(self, by: int, step: int = 1) -> Index:
        """Return step * self + by."""
        terms = tuple((axis, factor * step) for axis, factor in self.terms)
        return Index(terms, self.offset * step + by)


#: Positions along the axes that are not simply the loop of that axis.
Where: TypeAlias = Mapping[Axis, Index]
HERE: Where = {}


def index_of(where: Where, axis: Axis) -> Index:
    """Return the position along `axis`."""
    return where.get(axis) or Index(((axis, 1),))


def linear(where: Where, axes: tuple[Axis, ...]) -> Index:
    """Return the position along a dim made of `axes`, outermost first.

    Raises:
        RefusedError: An inner axis has a size that may vary.
    """
    terms: dict[Axis, int] = {}
    offset, stride = 0, 1
    for axis in reversed(axes):
        index = index_of(where, axis)
        offset += index.offset * stride
        for loop, factor in index.terms:
            terms[loop] = terms.get(loop, 0) + factor * stride
        if axis is not axes[0]:
            if axis.extent.static is None:
                raise RefusedError("part of a dim that a Reshape makes of sizes that may vary")
            stride *= axis.extent.static
    return Index(tuple((loop, factor) for loop, factor in terms.items()), offset)


def through_views(program: Program, axes: Axes, number: int, where: Where) -> tuple[int, Where]:
    """Return the value whose elements a value shows in other places, and where it is read."""
    while True:
        node = program.values[number].node
        if isinstance(node, Slice):
            where = slice_where(axes, number, node, where)
        elif not isinstance(node, Broadcast | Transpose | Reshape):
            return number, where
        number = node.x


def slice_where(axes: Axes, number: int, node: Slice, where: Where) -> Where:
    """Return where the operand of a Slice is read."""
    index = linear(where, axes.dims[number][node.dim]).shifted(node.start, node.step)
    return _at(axes, node.x, node.dim, index, where)


def part_where(
    axes: Axes, node: Concat, part: int, index: Index, start: int, where: Where
) -> Where:
    """Return where one part of a Concat is read, which stands from `start` on."""
    if not axes.dims[part][node.dim]:
        return where
    return _at(axes, part, node.dim, index.shifted(-start), where)


def _at(axes: Axes, value: int, dim: int, index: Index, where: Where) -> Where:
    found = axes.dims[value][dim]
    if len(found) != 1:
        raise RefusedError("part of a dim that a Reshape splits or joins")
    return {**where, found[0]: index}


def row_where(axes: Axes, node: Lookup, where: Where) -> Where:
    """Return where the rows of a Lookup are read, counted from the row that its index names."""
    return _at(axes, node.x, 0, Index(()), where)


def starts_of(program: Program, node: Concat) -> list[int]:
    """Return where the parts of a Concat start, and where the last one ends."""
    starts = [0]
    for part in node.parts:
        size = program.values[part].shape[node.dim].static
        assert size is not None
        starts.append(starts[-1] + size)
    return starts


def key_of(axes: Axes, number: int, where: Where) -> tuple[Index | None, ...]:
    """Return what distinguishes this use of a value from others; all None for the plain one."""
    return tuple(where.get(axis) for axis in axes.of(number))


def loops_of(axes: Axes, number: int, where: Where) -> set[Axis]:
    """Return the loops that the value depends on there."""
    return {loop for axis in axes.of(number) for loop, _ in index_of(where, axis).terms}

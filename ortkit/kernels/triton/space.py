"""How a program's axes become the tiles of a kernel; loads no toolchain.

Every block of threads works on one tile of points, at once. Its dims are made of axes, each dim
counted as if its axes were one; operands are read where they lie, so that Triton transposes what
lies across the tile around in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ortkit.kernels.cuda import MAX_GRID
from ortkit.kernels.region.axes import (
    Axes,
    Axis,
    check_outputs,
    extent_of_axes,
    find_axes,
    row_of,
)
from ortkit.kernels.region.bounds import exceeds_bounds
from ortkit.kernels.region.program import Input, Program, Reduce, operands_of
from ortkit.kernels.region.reader import read_program
from ortkit.kernels.region.trace import Trace, trace
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused, RefusedError, refusals

#: A dim of fewer points is not worth a transposed tile.
_MIN_TRANSPOSED = 8
#: The grid's y and z have room for that many tiles of at least 32 points.
_MAX_TRANSPOSED = 32 * MAX_GRID[1]


#: This many points of a kernel may do one reduction again.
_MOST_TIMES = 8


@dataclass(frozen=True)
class Space:
    """The points of a kernel.

    Args:
        kind: "flat": tiles of one dim, `columns`, which are all points. "turned" (transposed):
            some operand is contiguous along `rows` and the outputs along `columns`, with `outer`
            around them. "rows": reductions run over `columns`, for each of `rows`.
        outer: Axes of which a tile has one point.
        rows: Dim 0 of a tile.
        columns: Dim 1 of a tile, or its only one.
        is_crosswise: Whether neighbours in memory lie along `rows` in some tensor of "rows".
    """

    program: Program
    axes: Axes
    trace: Trace
    kind: Literal["flat", "turned", "rows"]
    outer: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    is_crosswise: bool = False

    @property
    def row_count(self) -> Extent:
        """How many points dim 0 has."""
        return extent_of_axes(self.rows)

    @property
    def column_count(self) -> Extent:
        """How many points dim 1 has."""
        return extent_of_axes(self.columns)

    @property
    def tensors(self) -> tuple[int, ...]:
        """The values that lie in memory: inputs, then outputs."""
        return (*range(self.program.inputs), *self.program.outputs)


@lru_cache(maxsize=512)
@refusals
def space_of(signature: RegionSignature) -> Space | Refused:
    """Return the points of the region's kernel, or why there is none."""
    if refused := exceeds_bounds(signature):
        return refused
    program = read_program(signature)
    if isinstance(program, Refused):
        return program
    return _space(program)


def reduction_levels(program: Program) -> tuple[tuple[int, ...], ...]:
    """Return the reductions, those first that are made of no other ones, and so on."""
    depth = [0] * len(program.values)
    levels: list[list[int]] = []
    for number, value in enumerate(program.values):
        depth[number] = max((depth[x] for x in operands_of(value.node)), default=0)
        if isinstance(value.node, Reduce):
            if depth[number] == len(levels):
                levels.append([])
            levels[depth[number]].append(number)
            depth[number] += 1
    return tuple(map(tuple, levels))


def _space(program: Program) -> Space:
    axes = find_axes(program)
    largest = max(program.outputs, key=lambda output: len(axes.of(output)))
    full = axes.of(largest)
    row = row_of(program, axes, full)
    over = [axis for axis in full if axis not in row]
    check_outputs(program, axes, over, row)
    _check_repetition(program, axes, over)
    traced = trace(program, axes, (*over, *row), None)
    if row or axes.reduced:
        # Vectors that lie along the rows, such as a mean for each, are no reason to transpose
        # tiles.
        owned = [axes.of(number) for number in (*range(program.inputs), *program.outputs)]
        is_crosswise = any(own[-1] in over for own in owned if set(row) & set(own))
        return Space(program, axes, traced, "rows", (), tuple(over), tuple(row), is_crosswise)
    across = _across(program, axes, full)
    if across is None:
        return Space(program, axes, traced, "flat", (), (), full)
    outer = tuple(axis for axis in full if axis not in (across, full[-1]))
    return Space(program, axes, traced, "turned", outer, (across,), full[-1:])


def _check_repetition(program: Program, axes: Axes, over: Sequence[Axis]) -> None:
    """Raise if many rows of a kernel would do the same reduction, each for itself.

    Such as where parts of a normalized row change places: its columns are then rows of their own.
    """
    for number, value in enumerate(program.values):
        if not isinstance(value.node, Reduce):
            continue
        own = axes.of(number)
        others = extent_of_axes(tuple(axis for axis in over if axis not in own))
        if others.static is None or others.static > _MOST_TIMES:
            raise RefusedError("a reduction that many points would do again")


def _across(program: Program, axes: Axes, full: tuple[Axis, ...]) -> Axis | None:
    """Return the axis along which an input lies whose neighbours are far apart in the outputs."""
    if not full or not _is_wide(full[-1]):
        return None
    for number, value in enumerate(program.values):
        owned = axes.of(number)
        if not isinstance(value.node, Input) or full[-1] not in owned:
            continue
        if owned[-1] is not full[-1] and owned[-1] in full and _is_wide(owned[-1]):
            return owned[-1]
    return None


def _is_wide(axis: Axis) -> bool:
    size = axis.extent.static
    return size is None or _MIN_TRANSPOSED <= size <= _MAX_TRANSPOSED

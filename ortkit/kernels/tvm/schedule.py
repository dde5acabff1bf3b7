"""How a program's axes become loops, and what is kept between passes over a row.

A kernel's loops, outermost first: the units that the caller hands out; further axes, so that a
unit is worth its cost; then, if there are reductions, rows. Either the innermost axis is part of
the row (each pass runs over it in vectors), or it is not (a vector of rows is worked on at once).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from ortkit.kernels.backend import Launch
from ortkit.kernels.region.axes import (
    Axes,
    Axis,
    check_outputs,
    extent_of_axes,
    find_axes,
    row_of,
)
from ortkit.kernels.region.dtypes import compute_dtype, memory_bytes
from ortkit.kernels.region.program import Constant, Input, Lookup, Program, Reduce, Size
from ortkit.kernels.region.trace import Trace, trace
from ortkit.kernels.sizes import ONE, Extent, product
from ortkit.kernels.tvm.choices import DEFAULTS, Choices
from ortkit.refusal import RefusedError

#: What a size that is not known is taken for.
NOMINAL = 128
#: Fewer units than this are cut finer if their rows are long.
_FEW_UNITS = 16
_LONG_ROW = 4096
#: Values kept between passes lie on the stack of ONNX Runtime's threads.
_STACK_BYTES = 128 * 1024
#: The longest row of unknown size whose values are kept; of longer ones they are computed again.
KEPT_ROW = 4096
#: One core, an AVX-512 machine of 2024: 32 simple operations and 16 bytes a nanosecond.
_PICOSECONDS_PER_FLOP = 31
_PICOSECONDS_PER_BYTE = 60


@dataclass(frozen=True)
class Schedule:
    """The loops of one kernel.

    Args:
        units: Handed out by the caller. Of a flat schedule it is the vector axis itself.
        inner: Serial loops inside a unit.
        row: What reductions run over, outermost first; empty without reductions.
        vector: The axis whose points are computed side by side; None where there is one point.
        is_flat: The caller hands out ranges of the one axis there is.
        across: With the vector axis it makes tiles, for tensors that lie along it; None if there
            are none. If there are no other axes the caller hands out ranges of it.
        kept: Values that a later pass over a row reads again -> the pass that computes them.
        choices: Of the code that is made of it.
    """

    program: Program
    axes: Axes
    trace: Trace
    units: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    row: tuple[Axis, ...]
    vector: Axis | None
    is_flat: bool
    across: Axis | None
    kept: dict[int, int]
    choices: Choices = DEFAULTS

    @property
    def is_row_vector(self) -> bool:
        """Whether vectors run along rows, rather than over rows side by side."""
        return self.vector in self.row

    @property
    def reductions(self) -> tuple[int, ...]:
        """The values that are reductions, in order."""
        values = enumerate(self.program.values)
        return tuple(number for number, value in values if isinstance(value.node, Reduce))

    @cached_property
    def repeated(self) -> frozenset[int]:
        """The values that more than one pass over a row computes, or reads."""
        times = Counter(value for pass_ in self.trace.passes for value in pass_.operands)
        return frozenset(value for value, count in times.items() if count > 1)

    @property
    def launch(self) -> Launch:
        """What the caller needs to know."""
        loops = [*self.inner, *self.row]
        if self.across is not None and self.units != (self.across,):
            loops.append(self.across)
        if self.vector is not None and not self.is_flat and not self.is_row_vector:
            loops.append(self.vector)
        return Launch(
            units=tuple(axis.extent for axis in self.units),
            points=extent_of_axes(loops),
            picoseconds_per_point=_picoseconds_per_point(self),
            inplace=_inplace(self),
        )


def make_schedule(program: Program, choices: Choices = DEFAULTS) -> Schedule:
    """Choose the loops, and leave the rest to `choices`.

    Raises:
        RefusedError: The program is not one iteration space with reductions local to its rows, or
            its tensors lie so that vectors cannot be loaded.
    """
    if any(isinstance(value.node, Lookup) for value in program.values):
        raise RefusedError("Gather with other than one constant index")
    axes = find_axes(program)
    largest = max(program.outputs, key=lambda output: len(axes.of(output)))
    full = axes.of(largest)
    row = row_of(program, axes, full)
    over = [axis for axis in full if axis not in row]
    check_outputs(program, axes, over, row)
    vector = _vector(program, axes, full, row)
    outer = [axis for axis in over if axis is not vector]
    if vector is not None and vector not in row and outer:
        axes, outer, vector = _cut_long_rows(axes, outer, vector)
    traced = trace(program, axes, (*outer, *row, *([vector] if vector else [])), vector)
    is_flat = not row and not outer and vector is not None and vector not in traced.breaks
    if is_flat:
        assert vector is not None
        units, inner = [vector], list[Axis]()
    else:
        across = traced.across
        if across is not None and {across, vector} & set(traced.breaks):
            raise RefusedError("parts of a Concat in tiles")
        outer = [axis for axis in outer if axis is not across]
        rest = [*row, *(axis for axis in (across, vector) if axis and axis not in row)]
        units, inner = _split_units(outer, rest, traced, choices.unit_points)
        if across is not None and not outer:
            units = [across]
    schedule = Schedule(
        program,
        axes,
        traced,
        tuple(units),
        tuple(inner),
        tuple(row),
        vector,
        is_flat,
        traced.across,
        {},
        choices,
    )
    if not schedule.is_row_vector or not choices.keep:
        return schedule
    return replace(schedule, kept=_kept(schedule))


def _vector(program: Program, axes: Axes, full: tuple[Axis, ...], row: list[Axis]) -> Axis | None:
    if not row or set(row) <= set(full):
        return full[-1] if full else None
    for value in program.values:
        if isinstance(value.node, Reduce):
            innermost = axes.of(value.node.x)[-1]
            return innermost if innermost in row or innermost in full else full[-1]
    return None


def _cut_long_rows(axes: Axes, outer: list[Axis], vector: Axis) -> tuple[Axes, list[Axis], Axis]:
    """Split the vector axis where there would be few units of much work."""
    length, count = vector.extent.static, extent_of_axes(outer).static
    if length is None or count is None or count >= _FEW_UNITS or length < _LONG_ROW:
        return axes, outer, vector
    if vector in axes.pinned:
        return axes, outer, vector
    fitting = (n for n in range(_LONG_ROW, 255, -16) if length % n == 0)
    inside = next(fitting, None)
    if inside is None or inside == length:
        return axes, outer, vector
    high, low = Axis(Extent(length // inside)), Axis(Extent(inside))
    dims = tuple(
        tuple(
            tuple(part for a in dim for part in ((high, low) if a is vector else (a,)))
            for dim in value
        )
        for value in axes.dims
    )
    return replace(axes, dims=dims), [*outer, high], low


def _split_units(
    outer: list[Axis], rest: list[Axis], traced: Trace, least: int
) -> tuple[list[Axis], list[Axis]]:
    """Keep trailing axes inside a unit until it has `least` points."""
    units, inner = list(outer), list[Axis]()
    broken = [index for index, axis in enumerate(outer) if axis in traced.breaks]
    while units:
        points = product(axis.extent for axis in [*inner, *rest]).at(NOMINAL)
        has_break = bool(broken) and broken[0] < len(units)
        if points >= least and not has_break:
            break
        if not has_break and (len(units) == 1 or units[-1].extent.static is None):
            break
        inner.insert(0, units.pop())
    return units, inner


def _kept(schedule: Schedule) -> dict[int, int]:
    """Return values of the row that a later pass can read instead of computing them again.

    Those that some pass asks for first, coming from its result, and that an earlier one computed.
    """
    count = extent_of_axes(schedule.row).static
    computed: dict[int, int] = {}
    kept: dict[int, int] = {}
    for number, asked in enumerate(schedule.trace.passes):
        stack, seen = list(asked.roots), set()
        fresh: list[int] = []
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            node = schedule.program.values[value].node
            if isinstance(node, Input | Constant | Size | Reduce) or value not in asked.plain:
                continue
            if value in computed and asked.costs.get(value, 0):
                kept.setdefault(value, computed[value])
                continue
            fresh.append(value)
            stack += asked.operands[value]
        for value in fresh:
            computed.setdefault(value, number)
    rows = KEPT_ROW if count is None else count
    size = sum(
        memory_bytes(compute_dtype(schedule.program.values[value].dtype)) * rows for value in kept
    )
    return kept if size <= _STACK_BYTES else {}


def _picoseconds_per_point(schedule: Schedule) -> int:
    flops = schedule.trace.flops
    return max(1, flops * _PICOSECONDS_PER_FLOP + schedule.trace.bytes * _PICOSECONDS_PER_BYTE)


def _inplace(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Return pairs of an input and an output that may share memory.

    Only where the output's element is the last reader of the input's element at the same index,
    and no vector is computed twice: the last one of a row overlaps the one before.
    """
    is_plain = not (schedule.row or schedule.across or schedule.trace.breaks)
    if schedule.vector is None or not is_plain:
        return ()
    length = schedule.vector.extent.static
    if not schedule.is_flat and (length is None or length % schedule.choices.vector):
        return ()
    program, axes = schedule.program, schedule.axes
    pairs = []
    used: set[int] = set()
    for index, output in enumerate(program.outputs):
        for number in range(program.inputs):
            fits = (
                number not in used
                and program.values[number].dtype == program.values[output].dtype
                and axes.of(number) == axes.of(output)
                and number in schedule.trace.only_here
                and program.outputs.count(output) == 1
                and number != output
            )
            if fits:
                used.add(number)
                pairs.append((number, index))
                break
    return tuple(pairs)


__all__ = ["KEPT_ROW", "ONE", "Schedule", "make_schedule"]

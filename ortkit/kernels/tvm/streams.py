"""Asking for memory ahead of its use, where tensors are run through from end to end once.

What processors fetch by themselves ends at each page of 4 KB, and begins again in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ortkit.kernels.region.axes import Axis
from ortkit.kernels.region.dtypes import memory_bytes
from ortkit.kernels.region.indices import HERE
from ortkit.kernels.tvm.emit import NEAREST, Expr
from ortkit.kernels.tvm.schedule import Schedule
from ortkit.kernels.tvm.values import Values

_LINE_BYTES = 64


def has_streams(schedule: Schedule) -> tuple[bool, bool]:
    """Say whether there are inputs, and outputs, that are run through from end to end."""
    orders = list(_streams(schedule))
    inputs = schedule.program.inputs
    return any(item < inputs for item, _ in orders), any(one >= inputs for one, _ in orders)


def ask_ahead(v: Values, axis: Axis, first: Expr, width: int) -> None:
    """Ask for what comes some way after `width` points of the vector axis from `first` on."""
    e, choices = v.e, v.schedule.choices
    if not choices.fetch and not choices.claim:
        return
    v.bind(axis, first)
    for order, number in _streams(v.schedule):
        is_output = order >= v.schedule.program.inputs
        distance = choices.claim if is_output else choices.fetch
        if not distance:
            continue
        tensor = v.tensors[order]
        size = memory_bytes(tensor.dtype)
        start = v.offset(number, HERE)
        for line in range(0, width * size, _LINE_BYTES):
            e.prefetch(tensor.buffer, start + e.i64((distance + line) // size), NEAREST)


def _streams(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield places of tensors and their values: those with each point of the loops once."""
    if schedule.across is not None or schedule.vector is None:
        return
    if schedule.row and not schedule.is_row_vector:
        return
    loops = {*schedule.units, *schedule.inner, *schedule.row, schedule.vector}
    numbers = [*range(schedule.program.inputs), *schedule.program.outputs]
    for index, number in enumerate(numbers):
        owned = schedule.axes.of(number)
        if set(owned) == loops and owned[-1] is schedule.vector:
            yield index, number

"""Which choices make a difference to a schedule: the space that tuning searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ortkit.kernels.region.axes import extent_of_axes
from ortkit.kernels.tvm.choices import DEFAULTS, VALUES
from ortkit.kernels.tvm.divisors import has_divisor
from ortkit.kernels.tvm.schedule import NOMINAL, Schedule
from ortkit.kernels.tvm.streams import has_streams

#: From this many operations a point on a kernel is busy with arithmetic, not with memory.
_HEAVY_FLOPS = 10
#: Lengths of rows between which another kernel may be best.
_LENGTHS = (64, 256, 1024)


def parameters_of(schedule: Schedule) -> Mapping[str, tuple[int, ...]]:
    """Return the parameters that the kernel's code depends on: the default first, then others."""
    default = asdict(DEFAULTS)
    return {
        name: (default[name], *(value for value in values if value != default[name]))
        for name, values in _values(schedule).items()
    }


def kind_of(schedule: Schedule) -> str:
    """Return what the loops of a kernel are like: what one choice of parameters depends on."""
    work = "heavy" if schedule.trace.flops >= _HEAVY_FLOPS else "light"
    if schedule.across is not None:
        return f"tiles,{work}"
    if schedule.vector is None:
        return f"points,{work}"
    if schedule.row and not schedule.is_row_vector:
        return f"rows side by side,{work}"
    if schedule.is_flat:
        return f"flat,{work}"
    axes = schedule.row if schedule.row else (schedule.vector,)
    length = extent_of_axes(axes).at(NOMINAL)
    bound = next((f"<={item}" for item in _LENGTHS if length <= item), f">{_LENGTHS[-1]}")
    known = "" if all(axis.extent.static is not None for axis in axes) else ",unknown"
    passes = len(schedule.reductions)
    what = f"rows,{passes} reductions" if schedule.row else "vectors"
    return f"{what},{bound}{known},{work}"


def _values(schedule: Schedule) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    if schedule.across is not None:
        found["tile"] = VALUES["tile"]
    elif schedule.vector is not None:
        length = schedule.vector.extent.static
        # A row of unknown size that is shorter than a vector goes point by point.
        most = DEFAULTS.vector if length is None and not schedule.is_flat else length or 1 << 30
        found["vector"] = tuple(value for value in VALUES["vector"] if value <= most)
        found["unroll"] = VALUES["unroll"]
    if schedule.is_row_vector:
        found["accumulators"] = VALUES["accumulators"]
        if schedule.kept:
            found["keep"] = VALUES["keep"]
    inputs, outputs = has_streams(schedule)
    if inputs:
        found["fetch"] = VALUES["fetch"]
    if outputs:
        found["claim"] = VALUES["claim"]
    if has_divisor(schedule):
        found["reciprocal"] = VALUES["reciprocal"]
    if not schedule.is_flat and len(schedule.units) + len(schedule.inner) > 1:
        found["unit_points"] = VALUES["unit_points"]
    return found

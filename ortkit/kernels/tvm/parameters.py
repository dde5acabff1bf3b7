"""Which choices make a difference to a schedule: the space that tuning searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ortkit.kernels.tvm.choices import DEFAULTS, VALUES
from ortkit.kernels.tvm.schedule import Schedule


def parameters_of(schedule: Schedule) -> Mapping[str, tuple[int, ...]]:
    """Return the parameters that the kernel's code depends on: the default first, then others."""
    default = asdict(DEFAULTS)
    return {
        name: (default[name], *(one for one in values if one != default[name]))
        for name, values in _values(schedule).items()
    }


def _values(schedule: Schedule) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    if schedule.across is not None:
        found["tile"] = VALUES["tile"]
    elif schedule.vector is not None:
        length = schedule.vector.extent.static
        # A row of unknown size that is shorter than a vector goes point by point.
        most = DEFAULTS.vector if length is None and not schedule.is_flat else length or 1 << 30
        found["vector"] = tuple(one for one in VALUES["vector"] if one <= most)
        found["unroll"] = VALUES["unroll"]
    if schedule.is_row_vector:
        found["accumulators"] = VALUES["accumulators"]
        if schedule.kept:
            found["keep"] = VALUES["keep"]
    if not schedule.is_flat and len(schedule.units) + len(schedule.inner) > 1:
        found["unit_points"] = VALUES["unit_points"]
    return found

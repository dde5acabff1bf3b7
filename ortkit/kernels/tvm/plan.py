"""From a signature to the loops of its kernel; loads no toolchain."""

from __future__ import annotations

from functools import lru_cache

from ortkit.kernels.region.bounds import exceeds_bounds
from ortkit.kernels.region.reader import read_program
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.choices import DEFAULTS, Choices
from ortkit.kernels.tvm.schedule import Schedule, make_schedule
from ortkit.refusal import Refused, refusals


@lru_cache(maxsize=512)
@refusals
def plan_of(signature: RegionSignature, choices: Choices = DEFAULTS) -> Schedule | Refused:
    """Return the schedule of the region's kernel, or why there is none."""
    if refused := exceeds_bounds(signature):
        return refused
    program = read_program(signature)
    if isinstance(program, Refused):
        return program
    return make_schedule(program, choices)

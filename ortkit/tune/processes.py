"""Kernels are timed in a process: a crash or a hang there costs one batch and is one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortkit.errors import KernelError
from ortkit.isolation.ended import Ended, TimedOut
from ortkit.isolation.run import Imports, run_isolated
from ortkit.tune.timing_child import KernelTimes

TIMEOUT_SECONDS = 60.0

Job = TypeVar("Job")


def timed_in_process(
    time: Callable[[Job], KernelTimes],
    job: Job,
    *,
    imports: Imports = "ortkit",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> KernelTimes:
    """Let a function time kernels in a process of its own; see `run_isolated`.

    Raises:
        KernelError: It crashed, failed, or did not end.
    """
    found = run_isolated(time, job, timeout_seconds=timeout_seconds, imports=imports)
    if isinstance(found, TimedOut):
        raise KernelError(f"kernels did not end within {timeout_seconds:g} seconds")
    if isinstance(found, Ended):
        raise KernelError(f"the process that times kernels {found}")
    return found

"""Which kernels a run on a GPU takes its time in."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from ortkit.runtime.profiling.cuda_activity import CudaActivity
from ortkit.runtime.profiling.trace.devices import busy_us


def kernels_of(run: Callable[[], object], rounds: int = 10) -> dict[str, Any]:
    """Say which kernels a run takes its time in: microseconds and launches, largest first.

    All of a run is the time in which a kernel was on the device. A launch that begins early waits
    while the launch before ends, so that their times may add up to more.
    """
    began = time.time_ns()
    with CudaActivity() as activity:
        for _ in range(rounds):
            run()
    elapsed: dict[str, float] = defaultdict(float)
    launched: Counter[str] = Counter()
    events = activity.events(began)
    for event in events:
        elapsed[event.name] += event.duration_us
        launched[event.name] += 1
    return {
        "microseconds": busy_us(events) / rounds,
        "kernels": [
            [name[:160], elapsed[name] / rounds, launched[name] / rounds]
            for name in sorted(elapsed, key=lambda name: -elapsed[name])[:40]
        ],
    }

"""Which kernels a run on a GPU takes its time in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from ortkit.runtime.profiling.cuda_activity import CudaActivity


def kernels_of(run: Callable[[], object], rounds: int = 10) -> dict[str, Any]:
    """Say which kernels a run takes its time in: microseconds and launches, largest first."""
    with CudaActivity() as activity:
        for _ in range(rounds):
            run()
    elapsed: dict[str, float] = defaultdict(float)
    launched: Counter[str] = Counter()
    for event in activity.events(0):
        elapsed[event.name] += event.duration_us
        launched[event.name] += 1
    return {
        "microseconds": sum(elapsed.values()) / rounds,
        "kernels": [
            [name[:160], elapsed[name] / rounds, launched[name] / rounds]
            for name in sorted(elapsed, key=lambda name: -elapsed[name])[:40]
        ],
    }

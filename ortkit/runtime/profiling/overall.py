"""Where the time of a run goes, as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.balance import MOST_RUNS
from ortkit.runtime.profiling.context import Context
from ortkit.runtime.profiling.result import Overall
from ortkit.runtime.profiling.times import times_of
from ortkit.runtime.profiling.trace.devices import busy_us
from ortkit.runtime.profiling.trace.gaps import Gaps
from ortkit.runtime.profiling.trace.trace import Trace

Numbers = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def overall_of(
    trace: Trace, counted: Numbers, gaps: Gaps, run_times: Values, context: Context
) -> Overall:
    """Say where the time of a run goes.

    Args:
        trace: The trace, as read from its file.
        counted: Which runs count.
        gaps: Between their nodes.
        run_times: [rows, runs] own time of each node in each run.
        context: What else is known.
    """
    runs = len(counted)
    device: float | None = None
    copies: float | None = None
    if context.device_times:
        chosen = set(counted.tolist())
        events = [kernel for kernel in trace.kernels if kernel.run in chosen]
        device = busy_us(events) / runs
        copies = sum(event.duration_us for event in events if event.kind == "copy") / runs
    plain = context.plain_us
    durations = np.array([trace.runs[run].duration_us for run in counted], np.float64)
    near = _near_median(durations)
    return Overall(
        profiled=times_of(durations),
        plain=times_of(plain) if len(plain) else None,
        kernels_us=float(run_times.sum(axis=0)[near].mean()),
        covered_us=float(gaps.covered[near].mean()),
        least_covered_us=float(gaps.covered.min()),
        gaps_us=float(gaps.between[near].mean()),
        outside_us=float(gaps.outside[near].mean()),
        device_us=device,
        copies_us=copies,
        peak_bytes=_peak(trace, counted),
    )


def _near_median(durations: Values) -> Numbers:
    """Return the runs from the lower quartile to the median.

    The parts of a run are means over them, so that they add up to no more than the median run,
    whatever other processes did to half of the runs. A mean is finer than a trace's microseconds.
    """
    count = len(durations)
    order = np.argsort(durations, kind="stable")
    return order[count // 4 : count // 2 + 1]


def _peak(trace: Trace, counted: Numbers) -> int | None:
    """Return the most that is in use, summed over arenas: each provider has its own."""
    nodes = trace.nodes
    events = np.flatnonzero(np.isin(nodes.run, counted[-MOST_RUNS:]))
    in_use = nodes.memory("in_use", events)
    if in_use is None or not len(events):
        return None
    providers: dict[str, int] = {}
    number = np.array(
        [
            providers.setdefault(signature.provider, len(providers))
            for signature in nodes.signatures
        ]
    )
    arena = number[nodes.signature[events]]
    return int(sum(in_use[arena == item].max() for item in np.unique(arena)))

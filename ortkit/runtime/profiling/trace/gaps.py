"""Time in which no kernel ran: the runtime's own, and the tracing's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.trace.trace import Trace

Numbers = npt.NDArray[np.int64]


class Gaps(NamedTuple):
    """All in microseconds."""

    before: Numbers
    """[events] between the end of what ran before and the event's begin; 0 within a body."""
    between: Numbers
    """[runs counted] between the first kernel and the last."""
    outside: Numbers
    """[runs counted] before the first and after the last."""
    covered: Numbers
    """[runs counted] in which at least one kernel ran."""


def gaps_of(trace: Trace, holder: Numbers, counted: Numbers) -> Gaps:
    """Find the gaps in the runs that count.

    Args:
        trace: The trace, as read from its file.
        holder: [events] the event in which each ran, -1 for none.
        counted: Which runs, ascending.
    """
    nodes = trace.nodes
    before = np.zeros(len(nodes), np.int64)
    begins = np.array([trace.runs[run].start_us for run in counted], np.int64)
    ends = np.array([trace.runs[run].end_us for run in counted], np.int64)
    counted_index = np.full(len(trace.runs) + 1, -1, np.int64)
    counted_index[counted] = np.arange(len(counted))
    top = np.flatnonzero((counted_index[nodes.run] >= 0) & (holder < 0))
    if not len(top):
        nothing = np.zeros(len(counted), np.int64)
        return Gaps(before, nothing, ends - begins, nothing)
    top = top[np.lexsort((nodes.start_us[top], counted_index[nodes.run[top]]))]
    run = counted_index[nodes.run[top]]
    start = np.maximum(nodes.start_us[top], begins[run])
    stop = np.minimum(nodes.start_us[top] + nodes.duration_us[top], ends[run])
    # The latest end so far within each run: a run's times are moved beyond those before it.
    step = int(ends.max() - begins.min()) + 1
    latest = np.maximum.accumulate(stop - begins[run] + run * step) - run * step + begins[run]
    is_first = np.r_[True, run[1:] != run[:-1]]
    until = np.where(is_first, begins[run], np.r_[0, latest[:-1]])
    gap = np.maximum(0, start - until)
    before[top] = gap
    last = np.flatnonzero(np.r_[run[1:] != run[:-1], True])
    which = run[last]
    outside = ends - begins
    outside[which] = gap[is_first] + np.maximum(0, ends[which] - latest[last])
    between = np.bincount(run[~is_first], gap[~is_first], len(counted)).astype(np.int64)
    return Gaps(before, between, outside, ends - begins - between - outside)

"""Which run an event belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.trace.events import RunEvent

Numbers = npt.NDArray[np.int64]
#: Starts and durations are cut to whole microseconds, so that an end may come out too late.
_CUT_US = 1


def runs_of(
    runs: Sequence[RunEvent], start_us: Numbers, duration_us: Numbers, thread: Numbers
) -> Numbers:
    """Return for each event the run whose time holds it, or -1.

    A run's node events stand before its own `model_run` event in the file (seen with
    onnxruntime 1.31.1), so only the time says which run a node belongs to. Runs on several
    threads overlap: a run's own thread decides first. A node on a thread that never calls `run`
    (a session that runs nodes in parallel) belongs to the only run that holds it.

    Args:
        runs: By start.
        start_us: [events]
        duration_us: [events]
        thread: [events]
    """
    found = np.full(len(start_us), -1, np.int64)
    callers = np.array([run.thread for run in runs], np.int64)
    for caller in np.unique(callers):
        mine = thread == caller
        found[mine] = _holding(runs, np.flatnonzero(callers == caller), start_us[mine],
                               duration_us[mine])  # fmt: skip
    other = ~np.isin(thread, callers)
    if other.any():
        found[other] = _only_holding(runs, start_us[other], duration_us[other])
    return found


def _holding(
    runs: Sequence[RunEvent], which: Numbers, start_us: Numbers, duration_us: Numbers
) -> Numbers:
    """Return the one of `which` that holds each event; these do not overlap."""
    starts = np.array([runs[run].start_us for run in which], np.int64)
    ends = np.array([runs[run].end_us for run in which], np.int64)
    before = np.searchsorted(starts, start_us, side="right") - 1
    # A run of 0 us may begin where the one before ends: an event at that time is the earlier's.
    ends_there = (before >= 0) & (start_us + duration_us <= ends[before] + _CUT_US)
    return np.where(ends_there, which[before], -1)


def _only_holding(runs: Sequence[RunEvent], start_us: Numbers, duration_us: Numbers) -> Numbers:
    """Return the run that holds each event if no other does."""
    starts = np.array([run.start_us for run in runs], np.int64)
    ends = np.sort(np.array([run.end_us for run in runs], np.int64))
    latest = np.searchsorted(starts, start_us, side="right") - 1
    open_runs = latest + 1 - np.searchsorted(ends, start_us, side="left")
    alone = (latest >= 0) & (open_runs == 1)
    whole = start_us + duration_us <= np.array([run.end_us for run in runs])[latest] + _CUT_US
    return np.where(alone & whole, latest, -1)

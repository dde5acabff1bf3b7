"""Several run calls of one session at a time: throughput, and how long each call takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.rounds import rotated
from ortkit.runtime.workers.worker import ConcurrentRuns, Worker, WorkerError

#: Turns of each session with each number of callers, in rotating order, so that drift hits all.
_TURNS = 3


@dataclass(frozen=True)
class Throughput:
    """What a session does for several callers at a time; times in milliseconds."""

    callers: int
    per_second: float
    """Runs of all callers in a second."""
    items_per_second: float | None
    """Times the batch, None where that is not known."""
    p50: float
    p90: float
    p99: float
    runs: int


def measure_concurrency(
    plans: Mapping[int, SessionPlan],
    feeds: Path,
    callers: Sequence[int],
    *,
    seconds: float,
    timeout_seconds: float,
    batch: int | None,
    progress: Callable[[str], None],
) -> dict[int, tuple[Throughput, ...]]:
    """Let several threads call each session's `run` at a time, sessions in turn.

    Each session is in a process of its own, which is stopped while another has its turn.

    Args:
        plans: The sessions, by row.
        feeds: The inputs of all calls.
        callers: Numbers of callers, each measured on its own.
        seconds: For each session and number of callers.
        timeout_seconds: For a load or a turn.
        batch: Items of a run, None where that is not known.
        progress: Called with what is being done.

    Returns:
        By row, one result for each of `callers`; a session that fails has none.
    """
    found: dict[int, dict[int, list[ConcurrentRuns]]] = {}
    with contextlib.ExitStack() as stack:
        workers = {}
        for row, plan in plans.items():
            workers[row] = stack.enter_context(Worker())
            with contextlib.suppress(WorkerError):
                workers[row].load(plan, timeout_seconds)
                workers[row].feed(feeds, timeout_seconds)
                workers[row].stop()
                found[row] = {count: [] for count in callers}
        for count in callers:
            progress(f"{count} callers at a time")
            for turn in range(_TURNS):
                for row in rotated(list(found), turn):
                    try:
                        made = workers[row].concurrent(count, seconds / _TURNS, timeout_seconds)
                        workers[row].stop()
                    except WorkerError:
                        found.pop(row)
                    else:
                        found[row][count].append(made)
    return {
        row: tuple(_throughput(turns, batch) for turns in by_count.values())
        for row, by_count in found.items()
    }


def _throughput(turns: Sequence[ConcurrentRuns], batch: int | None) -> Throughput:
    times = 1e3 * np.concatenate([turn.seconds for turn in turns])
    p50, p90, p99 = (float(each) for each in np.quantile(times, (0.5, 0.9, 0.99)))
    per_second = len(times) / sum(turn.wall for turn in turns)
    items = None if batch is None else batch * per_second
    return Throughput(turns[0].callers, per_second, items, p50, p90, p99, len(times))

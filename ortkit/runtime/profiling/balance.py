"""How evenly the session's threads worked on each node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.result import Balance
from ortkit.runtime.profiling.trace.trace import NodeEvents

Numbers = npt.NDArray[np.int64]
#: Runs that are looked at: reading one event in full takes as long as reading ten in part.
MOST_RUNS = 5


@dataclass
class _Sums:
    calls: int = 0
    parallel: int = 0
    elapsed_us: int = 0
    wait_us: int = 0
    handing_us: int = 0
    tasks: dict[int, int] = field(default_factory=dict)


def balances(
    nodes: NodeEvents, row_of: Numbers, counted: Numbers, rows: int
) -> list[Balance | None]:
    """Return each row's balance in some of the counted runs; None: the trace does not say.

    Args:
        nodes: The events.
        row_of: [events] the row of each.
        counted: Runs that count.
        rows: How many rows there are.
    """
    sums = [_Sums() for _ in range(rows)]
    for run in counted[-MOST_RUNS:]:
        events = np.flatnonzero(nodes.run == run)
        # How many tasks a thread has run is counted since the session began.
        seen: dict[int, int] | None = None
        if len(events) and events[0] > 0:
            seen = _tasks(nodes, int(events[0]) - 1)
        for index in events.tolist():
            scheduling = nodes.scheduling(index)
            if scheduling is None:
                seen = None
                continue
            sum_ = sums[row_of[index]]
            sum_.calls += 1
            sum_.parallel += bool(scheduling.block_sizes)
            sum_.elapsed_us += int(nodes.duration_us[index])
            sum_.wait_us += scheduling.wait_us
            sum_.handing_us += (
                scheduling.distribution_us + scheduling.enqueue_us + scheduling.revoke_us
            )
            now = dict(scheduling.tasks)
            for thread, count in now.items():
                done = count - (seen or {}).get(thread, count)
                sum_.tasks[thread] = sum_.tasks.get(thread, 0) + max(0, done)
            seen = now
    return [_balance(item) for item in sums]


def _tasks(nodes: NodeEvents, index: int) -> dict[int, int] | None:
    scheduling = nodes.scheduling(index)
    return None if scheduling is None else dict(scheduling.tasks)


def _balance(sums: _Sums) -> Balance | None:
    if not sums.calls:
        return None
    elapsed = max(1, sums.elapsed_us)
    return Balance(
        parallel=sums.parallel / sums.calls,
        waiting=min(1.0, sums.wait_us / elapsed),
        handing_out=min(1.0, sums.handing_us / elapsed),
        tasks=tuple(sums.tasks[thread] for thread in sorted(sums.tasks)),
    )

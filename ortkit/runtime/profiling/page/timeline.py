"""One run of a profile as bars in lanes, and the memory in use meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ortkit.page.text import bytes_text, time_text
from ortkit.runtime.profiling.result import Profile, Row
from ortkit.runtime.profiling.trace.events import DeviceEvent, Memory
from ortkit.runtime.profiling.trace.trace import Trace
from ortkit.text import plural

#: Bars beyond this, the shortest, are left out, which the page says.
MOST_BARS = 40_000
_DEEPEST = 60
#: A run that takes this many times the median is an outlier.
_OUTLIER = 2
#: Outliers that are named, the slowest first.
_NAMED = 5

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bars:
    """Bars as columns; times in microseconds since the run began."""

    start: Sequence[float] = ()
    duration: Sequence[float] = ()
    node: Sequence[int] = ()
    """Row of the node; -1: not in the table."""
    lane: Sequence[int] = ()
    depth: Sequence[int] = ()
    """How many If, Loop or Scan the node is in."""
    label: Sequence[str | None] = ()
    """What else ran, such as a kernel of a device."""


@dataclass(frozen=True)
class Timeline:
    """What the page shows of one run."""

    number: int = 0
    """Of the run among those that count, from 1; 0: there is none to show."""
    runs: int = 0
    duration: float = 0.0
    lanes: Sequence[str] = ()
    bars: Bars = field(default_factory=Bars)
    memory_times: Sequence[float] = ()
    memory_bytes: Sequence[int] = ()
    memory_of: str = ""
    """Whose arena it is."""
    memory_missing: str = ""
    """Why there is no memory to show."""
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()

    def to_json(self) -> Mapping[str, object]:
        """Return the parts of the page's data that it is."""
        return {
            "run": {"number": self.number, "of": self.runs, "duration": self.duration},
            "lanes": list(self.lanes),
            "bars": {name: list(column) for name, column in vars(self.bars).items()},
            "memory": {
                "time": list(self.memory_times),
                "bytes": list(self.memory_bytes),
                "of": self.memory_of,
                "missing": self.memory_missing,
            },
        }


def timeline_of(profile: Profile, rows: int) -> Timeline:
    """Return the median run; of a profile without its trace there is none.

    Args:
        profile: What to show.
        rows: How many of its rows are in the page's tables.
    """
    trace = profile.trace
    if trace is None or profile.row_of is None or not profile.counted:
        missing = "a saved profile does not hold its trace: there is no run to show"
        return Timeline(runs=profile.runs, memory_missing=missing, notes=(missing,))
    run = _median_run(trace, profile.counted)
    event = trace.runs[run]
    chosen = np.flatnonzero(trace.nodes.run == run)
    kernels = [kernel for kernel in trace.kernels if kernel.run == run]
    bars, lanes, left = _bars(profile, trace, chosen, kernels, event.start_us)
    kept = [node if node < rows else -1 for node in bars.node]
    labels = [
        label if label or node >= 0 else profile.rows[was].name
        for label, node, was in zip(bars.label, kept, bars.node, strict=True)
    ]
    notes = [*_outliers(trace, profile.counted, event.duration_us)]
    notes += [f"the timeline leaves out the {left:,} shortest of its bars"] * bool(left)
    ends = map(sum, zip(bars.start, bars.duration, strict=True))
    whole = max([1.0, float(event.duration_us), *ends])  # whole microseconds: a run may take 0
    times, used, owner, missing = _memory(trace, chosen, event.start_us)
    return Timeline(
        number=profile.counted.index(run) + 1,
        runs=len(profile.counted),
        duration=whole,
        lanes=lanes,
        bars=Bars(bars.start, bars.duration, kept, bars.lane, bars.depth, labels),
        memory_times=times,
        memory_bytes=used,
        memory_of=owner,
        memory_missing=missing,
        facts=[("Memory in use", bytes_text(max(used)))] if used else [],
        notes=notes,
    )


def _median_run(trace: Trace, counted: Sequence[int]) -> int:
    """Return the run of median duration, of two in the middle the shorter."""
    ordered = sorted(counted, key=lambda run: trace.runs[run].duration_us)
    return ordered[(len(ordered) - 1) // 2]


def _outliers(trace: Trace, counted: Sequence[int], median_us: float) -> Sequence[str]:
    """Name the runs that took far longer than the median: the machine did something else."""
    elapsed = [
        (float(trace.runs[run].duration_us), number) for number, run in enumerate(counted, 1)
    ]
    slow = sorted((item for item in elapsed if item[0] > _OUTLIER * median_us), reverse=True)
    if not slow:
        return ()
    named = ", ".join(f"run {number}: {time_text(us)}" for us, number in slow[:_NAMED])
    more = f", and {len(slow) - _NAMED:,} more" if len(slow) > _NAMED else ""
    return (
        f"{len(slow):,} of {plural(len(elapsed), 'run')} "
        f"took more than {_OUTLIER} times the median "
        f"({named}{more}): the machine did something else meanwhile",
    )


def _bars(
    profile: Profile,
    trace: Trace,
    chosen: Numbers,
    kernels: Sequence[DeviceEvent],
    begin_us: int,
) -> tuple[Bars, list[str], int]:
    """Return bars, names of lanes, and how many bars were left out."""
    assert profile.row_of is not None
    nodes = trace.nodes
    left = max(0, len(chosen) + len(kernels) - MOST_BARS)
    if left:
        longest = np.argsort(-nodes.duration_us[chosen], kind="stable")
        chosen = np.sort(chosen[longest[: max(0, MOST_BARS - len(kernels))]])
        kernels = kernels[: MOST_BARS - len(chosen)]
    threads = list(dict.fromkeys(nodes.thread[chosen].tolist()))
    streams = list(dict.fromkeys(kernel.stream for kernel in kernels))
    rows: list[int] = profile.row_of[chosen].tolist()
    depths = [_depth(profile.rows, row) for row in rows]
    lane_of = {thread: lane for lane, thread in enumerate(threads)}
    return (
        Bars(
            [
                *(nodes.start_us[chosen] - begin_us).tolist(),
                *(round(kernel.start_us - begin_us, 3) for kernel in kernels),
            ],
            [
                *nodes.duration_us[chosen].tolist(),
                *(round(kernel.duration_us, 3) for kernel in kernels),
            ],
            [*rows, *(_launcher(profile.row_of, kernel) for kernel in kernels)],
            [
                *(lane_of[thread] for thread in nodes.thread[chosen].tolist()),
                *(len(threads) + streams.index(kernel.stream) for kernel in kernels),
            ],
            [*depths, *(0 for _ in kernels)],
            [*(None for _ in rows), *(f"{kernel.kind} {kernel.name}" for kernel in kernels)],
        ),
        [*_thread_names(threads), *(f"stream {stream}" for stream in streams)],
        left,
    )


def _launcher(row_of: Numbers, kernel: DeviceEvent) -> int:
    return int(row_of[kernel.node]) if kernel.node >= 0 else -1


def _thread_names(threads: Sequence[int]) -> list[str]:
    if len(threads) == 1:
        return ["nodes"]
    return [f"thread {number + 1}" for number in range(len(threads))]


def _depth(rows: Sequence[Row], row: int) -> int:
    depth = 0
    holder = rows[row].holder if row >= 0 else None
    while holder is not None and depth < _DEEPEST:
        depth += 1
        holder = rows[holder].holder
    return depth


def _memory(
    trace: Trace, chosen: Numbers, begin_us: int
) -> tuple[list[float], list[int], str, str]:
    """Return times, bytes in use after each node, whose arena it is, and why there is none."""
    found: dict[str, list[tuple[float, Memory]]] = {}
    for index in chosen.tolist():
        event = trace.nodes[index]
        if event.memory is not None:
            end = float(event.start_us + event.duration_us - begin_us)
            found.setdefault(event.provider, []).append((end, event.memory))
    if not found:
        return [], [], "", "the trace does not say how much memory is in use"
    # Each provider has its own arena: the one that holds most is shown.
    owner = max(found, key=lambda text: max(memory.in_use for _, memory in found[text]))
    points = sorted(found[owner], key=lambda one: one[0])
    first = points[0][1]
    times = [0.0, *(end for end, _ in points)]
    used = [first.in_use - first.in_use_delta, *(memory.in_use for _, memory in points)]
    return times, used, owner, ""

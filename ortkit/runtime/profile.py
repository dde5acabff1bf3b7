"""Reading ONNX Runtime's profile: time by operator, run by run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ortkit.errors import UserError

_KERNEL = "_kernel_time"


@dataclass(frozen=True)
class OpTime:
    """What all nodes of one operator take in one run."""

    op: str
    milliseconds: float
    """Mean over the runs that count, without the nodes of their subgraphs."""
    calls: int
    """Kernels started in one run."""


@dataclass(frozen=True)
class Profile:
    """Where the time of a run goes."""

    ops: tuple[OpTime, ...]
    """Most time first."""
    run_milliseconds: float
    """A whole run, mean over the same runs; more than without profiling."""
    runs: int
    """How many count: the faster half, which other processes disturbed least."""

    @property
    def kernel_milliseconds(self) -> float:
        """What the kernels take together; the rest is the runtime's own."""
        return sum(one.milliseconds for one in self.ops)

    def share(self, ops: frozenset[str]) -> float:
        """Return the part of a run that these operators take, 0 to 1."""
        taken = sum(one.milliseconds for one in self.ops if one.op in ops)
        return min(1.0, taken / self.run_milliseconds) if self.run_milliseconds else 0.0


@dataclass(frozen=True)
class _Event:
    op: str
    start: float
    end: float
    thread: int

    @property
    def taken(self) -> float:
        return self.end - self.start


def read_profile(path: Path, *, warmup: int = 1) -> Profile:
    """Read the file that `InferenceSession.end_profiling` names.

    Args:
        path: The JSON file.
        warmup: How many runs at its start are left out.

    Raises:
        UserError: It is no such file, or holds no run after the warm-up.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
        runs = sorted(_events(events, "Session"), key=lambda one: one.start)
        nodes = sorted(_events(events, "Node"), key=lambda one: (one.start, -one.end))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"is no profile: {error}", where=str(path)) from error
    if len(runs) <= warmup:
        raise UserError(
            f"the profile holds {len(runs)} runs and {warmup} are warm-up",
            where=str(path),
            fix=f"run the session at least {warmup + 1} times",
        )
    taken, calls = _by_op_and_run(nodes, runs)
    # Of the same runs for all, so that the shares add up: what disturbs a run hits any node.
    counted = sorted(range(warmup, len(runs)), key=lambda run: runs[run].taken)
    counted = counted[: (len(counted) + 1) // 2]
    ops = tuple(
        OpTime(
            op,
            fmean(times.get(run, 0.0) for run in counted) / 1e3,
            round(fmean(calls[op].get(run, 0) for run in counted)),
        )
        for op, times in taken.items()
    )
    return Profile(
        tuple(sorted(ops, key=lambda one: -one.milliseconds)),
        fmean(runs[run].taken for run in counted) / 1e3,
        len(counted),
    )


def _events(events: Sequence[Mapping[str, object]], category: str) -> Iterator[_Event]:
    """Yield the runs ("Session") or the kernels ("Node"); times in microseconds."""
    for event in events:
        if event.get("cat") != category or "dur" not in event:
            continue
        name, args = str(event["name"]), event.get("args") or {}
        if category == "Session" and name != "model_run":
            continue
        if category == "Node" and not name.endswith(_KERNEL):
            continue
        op = str(args.get("op_name", "")) if isinstance(args, dict) else ""
        start, taken = float(str(event["ts"])), float(str(event["dur"]))
        yield _Event(op, start, start + taken, int(str(event.get("tid", 0))))


def _by_op_and_run(
    nodes: Sequence[_Event], runs: Sequence[_Event]
) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, int]]]:
    """Return microseconds and calls by operator and run; both sorted by start.

    A run's node events stand before its own `model_run` event in the file (seen with
    onnxruntime 1.31.1), so only the time interval says which run a node belongs to.
    """
    taken: dict[str, dict[int, float]] = {}
    calls: dict[str, dict[int, int]] = {}
    holders: dict[int, list[_Event]] = {}
    run = 0
    for node in nodes:
        while run < len(runs) and node.start > runs[run].end:
            run += 1
        if run == len(runs) or node.start < runs[run].start:
            continue
        times = taken.setdefault(node.op, {})
        times[run] = times.get(run, 0.0) + node.taken
        counts = calls.setdefault(node.op, {})
        counts[run] = counts.get(run, 0) + 1
        # What an If or Loop takes includes the nodes of its bodies: these are counted alone.
        open_holders = holders.setdefault(node.thread, [])
        while open_holders and open_holders[-1].end <= node.start:
            open_holders.pop()
        if open_holders and node.end <= open_holders[-1].end:
            taken[open_holders[-1].op][run] -= node.taken
        open_holders.append(node)
    return taken, calls

"""How long models take: interleaved, each in a process of its own, and where the time goes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.runtime.intervals import Speedup as Speedup
from ortkit.runtime.intervals import speedup as speedup
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.profiling.build import read_profile
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers.interleave import Schedule, run_interleaved
from ortkit.runtime.workers.worker import Worker, WorkerError

CPU = ("CPUExecutionProvider",)
#: An input set of which fewer runs fit into the time gives way to the next.
_LEAST_RUNS = 20
_MOST_PROFILED = 32


@dataclass(frozen=True)
class Variant:
    """One model to time."""

    model: Path
    library: Path | None = None


@dataclass(frozen=True)
class Timing:
    """What the variants took; each list of rounds is aligned with the others."""

    seconds: tuple[tuple[float, ...], ...]
    """Per variant, per round: the median of the runs of its turn."""
    fastest: tuple[float, ...]
    """Per variant, the fastest of all runs."""
    feeds: Path
    """The input set that was used."""
    profile: Profile | None
    """Of the first variant."""
    profile_file: Path | None
    """What it was read from, in the folder that was given."""


@dataclass(frozen=True)
class NotTimed:
    """Why there are no times."""

    reason: str


def time_variants(
    variants: Sequence[Variant],
    feeds: Sequence[Path],
    folder: Path,
    *,
    seconds: float,
    profile_seconds: float = 0.0,
    timeout_seconds: float,
    providers: Sequence[str] = CPU,
    threads: int = 0,
) -> Timing | NotTimed:
    """Time the variants interleaved, under ONNX Runtime's default optimizations.

    Args:
        variants: The first is the one that is profiled.
        feeds: npz files; the first on which the first variant runs, and often enough in the
            time, is used.
        folder: For what the processes write.
        seconds: How long to time, all variants together; at least two rounds are run.
        profile_seconds: How long to profile the first variant after that, 0 for not at all.
        timeout_seconds: When to give up: for each stage of a process what is left of it.
        providers: Execution providers, most wanted first.
        threads: Of one session; 0: ONNX Runtime decides.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    until = time.monotonic() + timeout_seconds

    def left() -> float:
        return max(0.0, until - time.monotonic())

    settings = SessionSettings(threads=threads)
    plans = [
        SessionPlan(
            variant.model,
            () if variant.library is None else (variant.library,),
            [(name, {}) for name in providers],
            settings,
        )
        for variant in variants
    ]
    try:
        path = _first_that_runs(plans[0], feeds, seconds, left())
        schedule = Schedule(seconds / len(plans), processes=1, timeout_seconds=left())
        elapsed = run_interleaved(plans, path, schedule)
        if problem := next((one.problem for one in elapsed if one.problem), ""):
            return NotTimed(problem)
        trace = _profiled(plans[0], path, folder, profile_seconds, left())
    except WorkerError as error:
        return NotTimed(str(error))
    return Timing(
        tuple(tuple(samples.rounds[0]) for samples in elapsed),
        tuple(min(item.runs) for item in elapsed),
        path,
        None if trace is None else read_profile(trace, quiet_half=True),
        trace,
    )


def _first_that_runs(
    plan: SessionPlan, feeds: Sequence[Path], seconds: float, timeout_seconds: float
) -> Path:
    """Return the first input set that runs, the last one that does if all take long.

    Raises:
        WorkerError: It runs on none.
    """
    if len(feeds) == 1:
        return feeds[0]
    problem: WorkerError | None = None
    slow: Path | None = None
    longest = seconds / _LEAST_RUNS
    with Worker() as worker:
        worker.load(plan, timeout_seconds)
        for path in feeds:
            try:
                elapsed = worker.feed(path, timeout_seconds)
                if elapsed >= longest:  # a first run also allocates, and may have been interrupted
                    elapsed = min(worker.turn(longest, timeout_seconds, most=2).seconds)
            except WorkerError as error:
                problem = problem or error
                continue
            if elapsed < longest:
                return path
            slow = path
    if slow is not None:
        return slow
    raise problem or WorkerError("there are no inputs to run on")


def _profiled(
    plan: SessionPlan, feeds: Path, folder: Path, seconds: float, timeout_seconds: float
) -> Path | None:
    """Return a trace of some runs, None if no time is given for it.

    Raises:
        WorkerError: The process died.
    """
    if seconds <= 0:
        return None
    settings = dataclasses.replace(plan.settings, trace_prefix=folder / "profile")
    with Worker() as worker:
        worker.load(dataclasses.replace(plan, settings=settings), timeout_seconds)
        worker.feed(feeds, timeout_seconds)
        worker.turn(seconds, timeout_seconds, most=_MOST_PROFILED)
        return worker.end_profiling(timeout_seconds)

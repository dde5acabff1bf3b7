"""Several sessions timed interleaved, each in a process of its own.

Two sessions of one process are not comparable: where the allocator puts weights and buffers is
decided once per session, and a model against itself read 1.39. The same is decided once per
process, so each is started more than once, and what differs between its processes is part of
the spread. Whoever has no turn is stopped (see `Worker.stop`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ortkit.errors import UserError
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.rounds import rotated
from ortkit.runtime.workers.child import Loaded, Turn, Usage
from ortkit.runtime.workers.worker import Worker, WorkerError

#: Of one turn, where a run takes less: long enough for a median, short enough that drift
#: hits all alike.
_TURN_SECONDS = 0.05
#: After others had the caches, the first run of a turn does not count; a longer one fills them
#: again in any case.
_SETTLING_RUN_SECONDS = 0.02
#: A session is warm when a turn takes as long as the one before, up to this part ...
_WARM_WITHIN = 0.02
#: ... or when this part of the time is over.
_WARMUP_PART = 0.25
_LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Schedule:
    """How long and how often."""

    seconds: float = 3.0
    """Of runs that count, for each session over all of its processes."""
    rounds: int = 0
    """Of each process, instead of `seconds`; 0: as many as there is time for."""
    processes: int = 3
    """How many times each session is created."""
    timeout_seconds: float = 600.0
    """For a load, a first run or a turn."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UserError: One makes no sense.
        """
        for name, value, least in (
            ("--rounds", self.rounds, 0),
            ("--processes", self.processes, 1),
        ):
            if value < least:
                raise UserError(f"{value} makes no sense", where=name, fix=f"give {least} or more")
        if not 0 < self.seconds < math.inf:
            raise UserError(f"{self.seconds:g} seconds", where="--seconds", fix="give more than 0")


@dataclass
class Samples:
    """What one session took; lists are by process."""

    loaded: list[Loaded] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)
    """Medians of its turns, aligned with those of the other sessions."""
    runs: list[float] = field(default_factory=list)
    """All runs that count, of all processes."""
    wall_seconds: float = 0.0
    """Of all turns that count."""
    cpu_seconds: float = 0.0
    """Processor time of all threads in these turns."""
    used: list[Usage] = field(default_factory=list)
    """Memory at the end of each process."""
    arenas: list[Mapping[str, object]] = field(default_factory=list)
    """What the allocators of the first process counted at its end."""
    not_available: list[str] = field(default_factory=list)
    """Of these, and why."""
    warmup_runs: int = 0
    is_warm: bool = True
    """Whether times had settled, in each process, before they were counted."""
    problem: str = ""
    """Why there is nothing more, empty if all went well."""

    def add(self, turn: Turn) -> None:
        """Count one turn as a round of the current process."""
        self.rounds[-1].append(median(turn.seconds))
        self.runs += turn.seconds
        self.wall_seconds += turn.wall
        self.cpu_seconds += turn.cpu


def _silent(what: str) -> None:
    """Ignore progress."""


def run_interleaved(
    plans: Sequence[SessionPlan],
    feeds: Path,
    schedule: Schedule | None = None,
    *,
    results: Sequence[Path | None] = (),
    arenas: bool = False,
    progress: Callable[[str], None] = _silent,
) -> list[Samples]:
    """Make all sessions, run them interleaved, and do so again with fresh processes.

    Args:
        plans: The sessions. One that fails is left out from then on.
        feeds: A folder of tensors or an npz file.
        schedule: How long and how often.
        results: Where the outputs of each session's first run go: new folders of tensors.
        arenas: Whether the allocators of the first processes are asked what they count.
        progress: Called with what is being done.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    running = _Interleaved(plans, feeds, schedule or Schedule(), arenas, progress)
    for number in range(running.schedule.processes):
        running.hold(number, results if number == 0 else ())
    return running.samples


class _Interleaved:
    """The sessions and what they took so far."""

    def __init__(
        self,
        plans: Sequence[SessionPlan],
        feeds: Path,
        schedule: Schedule,
        arenas: bool,
        progress: Callable[[str], None],
    ) -> None:
        self.plans = plans
        self.feeds = feeds
        self.schedule = schedule
        self.arenas = arenas
        self.progress = progress
        self.samples = [Samples() for _ in plans]
        self.workers: dict[int, Worker] = {}

    def hold(self, number: int, results: Sequence[Path | None]) -> None:
        """Start one process for each session, run them, and end them."""
        with contextlib.ExitStack() as stack:
            self.workers = {}
            for index in rotated(range(len(self.plans)), number):
                if not self.samples[index].problem:
                    worker = Worker.for_plan(self.plans[index])
                    self.workers[index] = stack.enter_context(worker)
                    self.progress(f"process {number + 1}: load session {index + 1}")
                    self._guarded(index, lambda i: self._load(i, results[i] if results else None))
            self.progress(f"process {number + 1}: warm up")
            self._warm_up()
            self.progress(f"process {number + 1}: time")
            self._rounds()
            for index in list(self.workers):
                self._guarded(index, self._note_usage)

    def _guarded(self, index: int, step: Callable[[int], None]) -> None:
        """Do something with a worker; if that fails the session is left out, and has a reason."""
        try:
            step(index)
            self.workers[index].stop()
        except WorkerError as error:
            self.samples[index].problem = str(error)
            self.workers.pop(index).kill()

    def _load(self, index: int, result: Path | None) -> None:
        samples, timeout = self.samples[index], self.schedule.timeout_seconds
        worker = self.workers[index]
        samples.loaded.append(worker.load(self.plans[index], timeout))
        samples.first_seconds.append(worker.feed(self.feeds, timeout))
        samples.rounds.append([])
        if result is not None:
            worker.keep(result, timeout)

    def _warm_up(self) -> None:
        """Run every session until its times have settled, or long enough."""
        until = time.perf_counter() + _WARMUP_PART * self._seconds()
        last: dict[int, float] = {}
        cold = list(self.workers)

        def warm(index: int) -> None:
            turn = self._turn(index)
            self.samples[index].warmup_runs += len(turn.seconds)
            elapsed, before = median(turn.seconds), last.get(index)
            last[index] = elapsed
            if before is not None and abs(elapsed - before) <= _WARM_WITHIN * before:
                cold.remove(index)

        while cold:
            for index in list(cold):
                self._guarded(index, warm)
                if index not in self.workers:
                    cold.remove(index)
            if time.perf_counter() > until:
                break
        for index in cold:
            self.samples[index].is_warm = False

    def _rounds(self) -> None:
        """Interleave the sessions: each has one turn a round, in rotating order, so that drift
        hits all."""
        until = time.perf_counter() + self._seconds()
        number = 0
        while self.workers and self._goes_on(number, until):
            for index in rotated(range(len(self.plans)), number):
                if index in self.workers:
                    self._guarded(index, lambda i: self.samples[i].add(self._turn(i)))
            number += 1

    def _goes_on(self, number: int, until: float) -> bool:
        if self.schedule.rounds:
            return number < self.schedule.rounds
        return number < _LEAST_ROUNDS or time.perf_counter() < until

    def _turn(self, index: int) -> Turn:
        samples = self.samples[index]
        rounds = samples.rounds[-1]
        known = rounds[-1] if rounds else samples.first_seconds[-1]
        settle = 1 if known < _SETTLING_RUN_SECONDS else 0
        timeout = self.schedule.timeout_seconds
        return self.workers[index].turn(_TURN_SECONDS, timeout, settle=settle)

    def _seconds(self) -> float:
        """Return the time for the rounds of one process of each session."""
        return self.schedule.seconds * len(self.plans) / self.schedule.processes

    def _note_usage(self, index: int) -> None:
        samples, worker = self.samples[index], self.workers[index]
        samples.used.append(worker.usage())
        if not self.arenas or len(samples.used) > 1:
            return
        try:
            samples.arenas, samples.not_available = worker.arenas()
        except WorkerError as error:  # nothing else is asked of it after that
            samples.not_available = [f"arenas: {error}"]

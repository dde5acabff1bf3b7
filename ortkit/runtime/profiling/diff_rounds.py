"""Two sessions traced interleaved, each in processes of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ortkit.errors import RunError
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.profiling.graph_file import GRAPH_CONFIG
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.profiling.trace.trace import Trace
from ortkit.runtime.rounds import rotated
from ortkit.runtime.workers.worker import Worker, WorkerError

#: Before the runs that count, in each process: its memory is planned and its caches are filled.
_WARMUP_RUNS = 3
#: Runs of one turn: the first of a turn does not count where a run is short, because the other
#: session had the caches meanwhile.
_RUNS_OF_A_TURN = 3
_SHORT_RUN_SECONDS = 0.02
_WEIGHTS_NAME = "session.optimized_model_external_initializers_file_name"


@dataclass(frozen=True)
class Traced:
    """One process of one session."""

    trace: Trace
    graph: Path | None
    """The graph that ran, without its weights, of the first process; None: it could not be
    written."""
    counted: npt.NDArray[np.int64]
    """Which of the trace's runs count, in order: as many for both sessions."""


def trace_interleaved(
    plans: tuple[SessionPlan, SessionPlan],
    feeds: Path,
    folder: Path,
    *,
    runs: int,
    processes: int,
    timeout_seconds: float,
    progress: Callable[[str], None],
) -> tuple[list[Traced], list[Traced]]:
    """Trace both sessions so that run i of one is taken at about the time of run i of the other.

    Args:
        plans: The sessions.
        feeds: A folder of tensors or an npz file.
        folder: For traces.
        runs: How many count, over all processes.
        processes: How many times each session is created.
        timeout_seconds: For a load or a turn.
        progress: Told what is being done.

    Raises:
        RunError: One of them does not load or run.
    """
    each = -(-runs // processes)
    found: tuple[list[Traced], list[Traced]] = ([], [])
    for number in range(processes):
        progress(f"trace interleaved, {number + 1} of {processes}")
        run_folder = folder / f"traces{number}"
        run_folder.mkdir()
        with contextlib.ExitStack() as stack:
            sessions = [
                stack.enter_context(
                    _Session(plan, run_folder / side, timeout_seconds, graph=number == 0)
                )
                for side, plan in zip("ab", plans, strict=True)
            ]
            for session in sessions:
                session.load(feeds)
            _rounds(sessions, each, start=number)
            for side, session in zip(found, sessions, strict=True):
                side.append(session.traced())
    return found


def _rounds(sessions: Sequence[_Session], runs: int, *, start: int) -> None:
    for session in sessions:
        session.turn(0, _WARMUP_RUNS)
    settle = 1 if min(session.seconds for session in sessions) < _SHORT_RUN_SECONDS else 0
    done = 0
    while done < runs:
        count = min(_RUNS_OF_A_TURN, runs - done)
        for one in rotated(sessions, start + done // _RUNS_OF_A_TURN):
            one.turn(count, settle)
        done += count


class _Session:
    """One traced session in its process; a context manager that ends it."""

    def __init__(
        self, plan: SessionPlan, folder: Path, timeout_seconds: float, *, graph: bool
    ) -> None:
        folder.mkdir()
        self.plan = plan
        self.folder = folder
        self.graph = folder / "graph.onnx" if graph else None
        self.where = str(plan.model)
        self.timeout = timeout_seconds
        self.worker = Worker()
        self.runs = 0
        self.counted: list[int] = []
        self.seconds = 0.0
        """Of the last run."""

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.kill()

    def load(self, feeds: Path) -> None:
        """Make the session, with its graph if that can be written, and run it once.

        Raises:
            RunError: It cannot be made, or does not run.
        """
        try:
            self.worker.load(self._plan(), self.timeout)
        except WorkerError as error:
            if self.graph is None:
                raise RunError(str(error), where=self.where) from None
            # Nodes that a provider has compiled cannot be written, nor can what finds no room;
            # whether the graph is at fault at all the second try shows.
            self.graph = None
            with self._explained():
                self.worker.load(self._plan(), self.timeout)
        # As large as the model's, and nobody reads them.
        (self.folder / GRAPH_CONFIG[_WEIGHTS_NAME]).unlink(missing_ok=True)
        with self._explained():
            self.seconds = self.worker.feed(feeds, self.timeout)
            self.runs += 1
            self.worker.stop()

    def _plan(self) -> SessionPlan:
        settings = dataclasses.replace(self.plan.settings, trace_prefix=self.folder / "trace")
        if self.graph is not None:
            config = {**settings.config, **GRAPH_CONFIG}
            settings = dataclasses.replace(settings, optimized_model=self.graph, config=config)
        return dataclasses.replace(self.plan, settings=settings)

    def turn(self, count: int, settle: int) -> None:
        """Run `settle` times and then `count` times that count."""
        with self._explained():
            # A turn runs at least once: runs that do not count are asked for as a turn, too.
            most = count or settle
            turn = self.worker.turn(
                self.timeout, 2 * self.timeout, most=most, settle=settle if count else 0
            )
            self.worker.stop()
        self.seconds = turn.seconds[-1]
        if count:
            first = self.runs + settle
            self.counted += range(first, first + count)
            self.runs += settle
        self.runs += most

    def traced(self) -> Traced:
        with self._explained():
            path = self.worker.end_profiling(self.timeout)
        trace = read_trace(path)
        path.unlink()
        if len(trace.runs) != self.runs:
            raise RunError(
                f"the trace holds {len(trace.runs)} runs and there were {self.runs}",
                where=self.where,
                fix="use fewer runs: ONNX Runtime ends a trace after a million events",
            )
        return Traced(trace, self.graph, np.array(self.counted, np.int64))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except WorkerError as error:
            raise RunError(str(error), where=self.where) from None

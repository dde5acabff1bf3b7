"""A process that holds one session, as the caller sees it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.isolation.run import Imports, IsolatedObject
from ortkit.runtime.opening import SessionPlan as SessionPlan
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.workers.child import ConcurrentRuns as ConcurrentRuns
from ortkit.runtime.workers.child import HeldSession as HeldSession
from ortkit.runtime.workers.child import Loaded as Loaded
from ortkit.runtime.workers.child import Turn as Turn
from ortkit.runtime.workers.child import Usage

#: What a process has imported at first: its memory is what the model takes.
IMPORTS: Imports = "nothing"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class WorkerError(Exception):
    """The session cannot be made or run, or its process died; the text is one line."""


class Worker:
    """One process; a context manager that ends it.

    While it is not asked for anything it can be stopped: whatever its threads do between two
    runs (ONNX Runtime's spin for some milliseconds) then disturbs nobody.
    """

    def __init__(self, imports: Imports | None = None) -> None:
        """Start the process.

        Args:
            imports: What it has imported at first; None: `IMPORTS`.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        require_onnxruntime()
        self._held = IsolatedObject(HeldSession, None, imports=imports or IMPORTS)

    @classmethod
    def for_plan(cls, plan: SessionPlan) -> Self:
        """Start a process that can import the ONNX Runtime of a plan."""
        return cls(None if plan.onnxruntime is None else "nothing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process at once; it cannot be asked for anything any more."""
        self._held.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._held.is_alive

    @property
    def pid(self) -> int:
        """The process' number."""
        return self._held.pid

    def stop(self) -> None:
        """Let no thread of the process run until it is asked for something again."""
        self._held.stop()

    def load(self, plan: SessionPlan, timeout_seconds: float) -> Loaded:
        """Make the session.

        Raises:
            WorkerError: It cannot be made.
        """
        return self._ask(timeout_seconds, HeldSession.load, plan)

    def feed(self, inputs: Path, timeout_seconds: float) -> float:
        """Give it inputs, a folder of tensors or an npz file; returns the first run's seconds.

        Raises:
            WorkerError: The session does not run on them.
        """
        return self._ask(timeout_seconds, HeldSession.feed, inputs)

    def keep(self, folder: Path, timeout_seconds: float) -> None:
        """Run once and write the outputs into a new folder of tensors.

        Raises:
            WorkerError: The run fails, or an output cannot be written.
        """
        self._ask(timeout_seconds, HeldSession.keep, folder)

    def turn(
        self, seconds: float, timeout_seconds: float, *, most: int = 1_000_000, settle: int = 0
    ) -> Turn:
        """Run again and again for some time, at least once.

        Args:
            seconds: Seconds that it may take.
            timeout_seconds: When to give up.
            most: How many runs at most.
            settle: How many runs before them do not count.

        Raises:
            WorkerError: A run fails.
        """
        return self._ask(timeout_seconds, HeldSession.turn, seconds, most, settle)

    def concurrent(self, callers: int, seconds: float, timeout_seconds: float) -> ConcurrentRuns:
        """Let several threads run again and again for some time, each at least once.

        Raises:
            WorkerError: A run fails.
        """
        return self._ask(timeout_seconds, HeldSession.concurrent, callers, seconds)

    def usage(self, timeout_seconds: float = 60.0) -> Usage:
        """Return what the process uses and has used at most.

        Raises:
            WorkerError: It died.
        """
        return self._ask(timeout_seconds, HeldSession.usage)

    def arenas(
        self, timeout_seconds: float = 60.0
    ) -> tuple[list[Mapping[str, object]], list[str]]:
        """Return what the session's allocators count, and what is not known of it and why.

        Raises:
            WorkerError: It died.
        """
        return self._ask(timeout_seconds, HeldSession.arenas)

    def end_profiling(self, timeout_seconds: float) -> Path:
        """Return the trace of a session that was loaded with `trace_prefix`.

        Raises:
            WorkerError: It died.
        """
        return self._ask(timeout_seconds, HeldSession.end_profiling)

    def _ask(
        self,
        timeout_seconds: float,
        method: Callable[Concatenate[HeldSession, Arguments], Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        answer = self._held.call(timeout_seconds, method, *arguments, **named)
        if isinstance(answer, Ended):
            raise WorkerError(_line(answer))
        return answer


def _line(ended: Ended) -> str:
    """Say why there is no answer."""
    if isinstance(ended, TimedOut):
        return f"a run did not end within {ended.seconds:.0f} seconds"
    if ended == Crashed(signal.SIGKILL):
        return "the process was killed; is there not enough memory?"
    if isinstance(ended, Failed) and ended.error is not None:
        return str(ended.error)
    return str(ended)

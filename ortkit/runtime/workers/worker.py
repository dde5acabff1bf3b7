"""A process that holds one session, as the caller sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ortkit.runtime.child_process import child_command
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers import child

CPU: tuple[tuple[str, Mapping[str, str]], ...] = (("CPUExecutionProvider", {}),)


@dataclass(frozen=True)
class SessionPlan:
    """A session that is ready to be made: nothing is left to be looked for."""

    model: Path
    libraries: tuple[Path, ...] = ()
    providers: Sequence[tuple[str, Mapping[str, str]]] = CPU
    settings: SessionSettings = field(default_factory=SessionSettings)
    """How; target and kernels are in `providers` and `libraries`."""
    notes: tuple[str, ...] = ()
    """What is not as it was asked for."""
    runs_bodies: bool = False
    """Whether fused nodes run their function bodies, for want of a kernel library."""


class WorkerError(Exception):
    """The session cannot be made or run, or its process died; the text is one line."""


@dataclass(frozen=True)
class Loaded:
    """A session that was made."""

    seconds: float
    before: child.Usage
    """Memory before it, with ONNX Runtime imported."""
    after: child.Usage
    providers: tuple[str, ...]
    nodes: Mapping[str, int]
    """By provider, after ONNX Runtime's own optimizations; empty if it does not say."""
    version: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """Runs one after the other."""

    seconds: tuple[float, ...]
    """Of each run."""
    wall: float
    """From the first's begin to the last's end."""
    cpu: float
    """Processor time of all threads meanwhile."""


class Worker:
    """One process; a context manager that ends it.

    While it is not asked for anything it can be stopped: whatever its threads do between two
    runs (ONNX Runtime's spin for some milliseconds) then disturbs nobody.
    """

    def __init__(self, log: Path) -> None:
        """Say where the process writes what libraries print."""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._stopped = False

    def __enter__(self) -> Self:
        """Start the process.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        require_onnxruntime()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                child_command(child.__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.kill()

    def kill(self) -> None:
        """End the process at once; it cannot be asked for anything any more."""
        process = self._process
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._running().poll() is None

    @property
    def pid(self) -> int:
        """The process' number."""
        return self._running().pid

    def load(self, plan: SessionPlan, timeout_seconds: float) -> Loaded:
        """Make the session.

        Raises:
            WorkerError: It cannot be made.
        """
        answer = self._ask(
            timeout_seconds,
            do="load",
            model=str(plan.model),
            libraries=[str(path.absolute()) for path in plan.libraries],
            providers=[[name, dict(options)] for name, options in plan.providers],
            settings=_fields(plan.settings),
        )
        return Loaded(
            answer["seconds"],
            answer["before"],
            answer["after"],
            tuple(answer["providers"]),
            answer["nodes"],
            answer["version"],
            tuple(answer["outputs"]),
        )

    def feed(self, inputs: Path, timeout_seconds: float) -> float:
        """Give it inputs, a folder of tensors or an npz file; returns the first run's seconds.

        Raises:
            WorkerError: The session does not run on them.
        """
        if inputs.suffix == ".npz":
            answer = self._ask(timeout_seconds, do="feed_arrays", file=str(inputs))
        else:
            answer = self._ask(timeout_seconds, do="feed", folder=str(inputs))
        return float(answer["seconds"])

    def keep(self, folder: Path, timeout_seconds: float) -> None:
        """Run once and write the outputs into a new folder of tensors.

        Raises:
            WorkerError: The run fails, or an output cannot be written.
        """
        self._ask(timeout_seconds, do="keep", folder=str(folder))

    def turn(
        self, seconds: float, timeout_seconds: float, *, most: int = 1_000_000, settle: int = 0
    ) -> Turn:
        """Run again and again for some time, at least once.

        Args:
            seconds: How long.
            timeout_seconds: When to give up.
            most: How many runs at most.
            settle: How many runs before them do not count.

        Raises:
            WorkerError: A run fails.
        """
        answer = self._ask(timeout_seconds, do="turn", seconds=seconds, most=most, settle=settle)
        return Turn(tuple(answer["seconds"]), answer["wall"], answer["cpu"])

    def usage(self, timeout_seconds: float = 60.0) -> child.Usage:
        """Return what the process uses and has used at most.

        Raises:
            WorkerError: It died.
        """
        usage: child.Usage = self._ask(timeout_seconds, do="use")["usage"]
        return usage

    def arenas(
        self, timeout_seconds: float = 60.0
    ) -> tuple[list[Mapping[str, object]], list[str]]:
        """Return what the session's allocators count, and what is not known of it and why.

        Raises:
            WorkerError: It died.
        """
        answer = self._ask(timeout_seconds, do="count")
        return answer["arenas"], answer["missing"]

    def end_profiling(self, timeout_seconds: float) -> Path:
        """Return the trace of a session that was loaded with `trace_prefix`.

        Raises:
            WorkerError: It died.
        """
        return Path(self._ask(timeout_seconds, do="trace")["file"])

    def stop(self) -> None:
        """Let no thread of the process run until it is asked for something again."""
        if not self._stopped and self._running().poll() is None:
            self._running().send_signal(signal.SIGSTOP)
            self._stopped = True

    def _ask(self, timeout_seconds: float, **message: Any) -> dict[str, Any]:
        process = self._running()
        if self._stopped:
            process.send_signal(signal.SIGCONT)
            self._stopped = False
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._died() from None
        answer: dict[str, Any] = json.loads(self._line(timeout_seconds))
        if problem := answer.get("problem"):
            raise WorkerError(problem)
        return answer

    def _line(self, timeout_seconds: float) -> bytes:
        process = self._running()
        assert process.stdout is not None
        until = time.monotonic() + timeout_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    process.kill()
                    raise WorkerError(f"a run did not end within {timeout_seconds:.0f} seconds")
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    raise self._died()
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _died(self) -> WorkerError:
        """Return how the process ended."""
        code = self._running().wait()
        if code == -signal.SIGKILL:
            return WorkerError("the process was killed; is there not enough memory?")
        if code < 0:
            return WorkerError(f"crashed with signal {-code} ({signal.strsignal(-code)})")
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return WorkerError(f"ended with status {code}: {lines[-1] if lines else 'no output'}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise WorkerError("the process was not started")
        return self._process


def _fields(settings: SessionSettings) -> dict[str, object]:
    """Return settings as JSON has them, without what the child has no use for."""
    return {
        each.name: str(value) if isinstance(value, Path) else value
        for each in dataclasses.fields(settings)
        if each.name not in ("target", "kernels")
        for value in (getattr(settings, each.name),)
    }

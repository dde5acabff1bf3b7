"""The user's check of a model: a command whose exit code 0 says that the model is interesting."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

#: Stands for the model's path in the command.
PLACEHOLDER = "{}"


@dataclass
class Check:
    """Runs the command, several at a time; each in a process group, so that all of it ends."""

    command: str
    timeout_seconds: float
    jobs: int = 1
    count: int = 0
    """How often it was run."""
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def line(self, model: Path) -> str:
        """Return the command for a model; without `{}` the path comes last."""
        quoted = shlex.quote(str(model))
        if PLACEHOLDER in self.command:
            return self.command.replace(PLACEHOLDER, quoted)
        return f"{self.command} {quoted}"

    def holds(self, model: Path) -> bool:
        """Run the command; a timeout and a crash are a no."""
        return self.status(model) == 0

    def status(self, model: Path) -> int | None:
        """Return how the command ends, None if it does not in time or was stopped."""
        with self._lock:
            if self._stopped:
                return None
            self.count += 1
            process = subprocess.Popen(
                ["sh", "-c", self.line(model)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            return process.wait(self.timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)

    def first(self, candidates: Sequence[Callable[[], Path | None]]) -> int | None:
        """Return the number of the first candidate that holds, None if none does.

        Those after it, which may run at the same time, are stopped.

        Args:
            candidates: Each writes a model; None: it is none.
        """
        if self.jobs == 1:
            return next(
                (n for n, make in enumerate(candidates) if (path := make()) and self.holds(path)),
                None,
            )
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for start in range(0, len(candidates), self.jobs):
                    paths = [make() for make in candidates[start : start + self.jobs]]
                    futures = [
                        None if path is None else pool.submit(self.holds, path) for path in paths
                    ]
                    for number, future in enumerate(futures):
                        if future is not None and future.result():
                            return start + number
            finally:
                self.stop()
        return None

    def stop(self) -> None:
        """End what runs."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _end(process)
        with self._lock:
            self._stopped = False


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

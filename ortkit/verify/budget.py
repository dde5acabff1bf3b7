"""The time and the memory that the sessions of one verification may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from ortkit.errors import UserError

#: What the user can give where the time was not enough.
MORE_TIME = "give it more time with --verify-seconds S"
NO_TIME = "there was no time left"
#: MiB in which Python and ONNX Runtime start.
_LEAST_MIB = 256


def check_budget(seconds: float | None, memory_mib: int | None) -> None:
    """Check what the user gives; None is the default.

    Raises:
        UserError: No session could run in it.
    """
    if seconds is not None and not seconds > 0:
        raise UserError(f"cannot be {seconds:g}", where="--verify-seconds", fix="give more than 0")
    if memory_mib is not None and memory_mib < _LEAST_MIB:
        fix = f"give {_LEAST_MIB} or more"
        raise UserError(f"cannot be {memory_mib} MiB", where="--verify-memory", fix=fix)


class Budget:
    """Counts down the time that the sessions of one verification may take.

    Other work does not count: it ends. Sessions that run side by side count once.
    """

    def __init__(self, seconds: float, memory: int | None = None) -> None:
        """Start with all of the time.

        Args:
            seconds: For all sessions.
            memory: The bytes that each process may take; None: see `ortkit.verify.limits`.
        """
        self.seconds = seconds
        self.memory = memory
        self._spent = 0.0
        self._lock = Lock()
        self._running = 0
        """How many blocks run."""
        self._since = 0.0
        """When the first of them began."""

    @property
    def left(self) -> float:
        """The seconds that are left, 0 or more."""
        with self._lock:
            running = time.monotonic() - self._since if self._running else 0.0
            return max(0.0, self.seconds - self._spent - running)

    def restart(self) -> None:
        """Start again with all of the time, for another candidate."""
        with self._lock:
            self._spent, self._since = 0.0, time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block, in any thread."""
        with self._lock:
            if not self._running:
                self._since = time.monotonic()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._spent += time.monotonic() - self._since

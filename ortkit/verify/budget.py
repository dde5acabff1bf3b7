"""The time and the memory that the sessions of one verification may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

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

    Other work does not count: it ends.
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

    @property
    def left(self) -> float:
        """The seconds that are left, 0 or more."""
        return max(0.0, self.seconds - self._spent)

    def restart(self) -> None:
        """Start again with all of the time, for another candidate."""
        self._spent = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - started

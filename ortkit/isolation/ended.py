"""How a process ended that gave no result: values, as the caller goes on without it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from ortkit.errors import OrtkitError


@dataclass(frozen=True)
class Ended:
    """A job that gave no result; as text what is said of its process."""


@dataclass(frozen=True)
class Crashed(Ended):
    """A signal ended the process."""

    signal: int
    said: str = field(default="", compare=False)
    """The last lines that it printed, as one."""

    def __str__(self) -> str:
        return f"crashed with signal {self.signal} ({signal.strsignal(self.signal)})"


@dataclass(frozen=True)
class TimedOut(Ended):
    """The process was killed for its time."""

    seconds: float
    said: str = field(default="", compare=False)
    """The last lines that it printed, as one."""

    def __str__(self) -> str:
        return f"did not finish within {self.seconds:.0f} seconds"


@dataclass(frozen=True)
class Failed(Ended):
    """An exception ended the job, or the process ended without a result."""

    problem: str
    """One line: the exception, or the last that the process printed."""
    status: int = 1
    error: OrtkitError | None = None
    """The exception, if it is one of ours."""

    def __str__(self) -> str:
        return f"ended with status {self.status}: {self.problem}"

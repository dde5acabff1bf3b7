"""A pass that raises: what is recorded of it, so that a run can go on without the pass."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import InternalError, UserError

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FailedPass:
    """One pass that raised an exception and was left out."""

    name: str
    """The pass, or the stage of the run: `kernels`, `layout`, `precision`."""
    exception: str
    """The exception's type."""
    message: str
    """The exception's message, on one line."""
    node: str
    """The node that the pass looked at; empty if it looked at a whole graph."""
    where: str
    """The line of code that raised: `ortkit/passes/drop_identity.py:40`."""

    @property
    def text(self) -> str:
        """One line that says what happened and asks for a report."""
        at = f" at {self.node}" if self.node else ""
        return (
            f"{self.name} failed{at} and was left out: {self.exception}: {self.message}"
            f" ({self.where}); this is a bug, please report it with the model"
        )


class PassError(InternalError):
    """A pass raised an exception; the graph may hold half of an edit and must be dropped."""

    def __init__(self, failed: FailedPass) -> None:
        """Take what is known of the failure."""
        super().__init__(f"{failed.exception}: {failed.message}", where=failed.name)
        self.failed = failed

    @staticmethod
    def of(error: Exception, name: str, node: str = "") -> PassError:
        """Return the failure of the pass `name`, which raised `error` at `node`."""
        message = " ".join(str(error).split())
        return PassError(FailedPass(name, type(error).__name__, message, node, _location(error)))


#: Exceptions that no pass is to blame for: the machine's, the user's, and those blamed already.
NOT_OF_A_PASS = (MemoryError, OSError, UserError, PassError)


@contextmanager
def blamed(name: str, let_pass: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception of the pass or stage `name` into a `PassError`, but for `let_pass`."""
    not_blamed: tuple[type[Exception], ...] = (*NOT_OF_A_PASS, *let_pass)
    try:
        yield
    except not_blamed:
        raise
    except Exception as error:
        raise PassError.of(error, name) from error


def _location(error: Exception) -> str:
    """Return file and line of the innermost frame of ortkit that `error` passed through."""
    location = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(_ROOT):
            location = f"{path.relative_to(_ROOT).as_posix()}:{frame.lineno}"
        elif not location:
            location = f"{path.name}:{frame.lineno}"
    return location

"""What ortkit raises: one family for the user's mistakes, one for our own.

The command line turns each into one line and an exit code; see `ortkit.cli`.
"""

from __future__ import annotations

from typing import ClassVar

#: Characters of a word in a message: paths have up to some 4,000, names of values far fewer.
_MOST_WORD = 4096


class OrtkitError(Exception):
    """Base of everything that ortkit raises on purpose."""

    exit_code: ClassVar[int] = 70

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        """Say what is wrong, where, and what to do.

        Args:
            problem: What is wrong, with the offending value.
            where: The place as the user would write it: a path, an option, a node's name.
            fix: What to do about it, in the imperative.
        """
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        line = f"{self.where}: {self.problem}" if self.where else self.problem
        words = f"{line}; {self.fix}".split() if self.fix else line.split()
        return " ".join(map(_shortened, words))


def _shortened(word: str) -> str:
    """Cut the middle out of a word: a malformed model may have names of megabytes."""
    if len(word) <= _MOST_WORD:
        return word
    half = _MOST_WORD // 2
    return f"{word[:half]}...{word[-half:]}"


class UserError(OrtkitError):
    """Bad input or usage: one line, exit code 2, no traceback."""

    exit_code: ClassVar[int] = 2


class ModelError(UserError):
    """The model cannot be read, or is not a valid ONNX model."""


class RunError(UserError):
    """ONNX Runtime refused a session or a run; the message is its own, on one line."""


class MissingDependencyError(UserError):
    """A runtime or toolchain that the call needs is not installed."""


class CheckError(OrtkitError):
    """A check that the user asked for did not hold: exit code 1."""

    exit_code: ClassVar[int] = 1


class InternalError(OrtkitError):
    """A bug in ortkit: exit code 70, with a traceback and a request to report it."""


class KernelError(InternalError):
    """A kernel toolchain failed on a region that its backend had accepted."""

"""What ortkit raises: one family for the user's mistakes, one for our own.

The command line turns each into one line and an exit code; see `ortkit.cli`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

#: Characters of a word in a message: paths have up to some 4,000, names of values far fewer.
_MOST_WORD = 4096
#: Messages are written with the flags of the command line, and show parameters of Python: those
#: that are called otherwise than their flag.
_PARAMETERS = {
    "deny": "denied", "fix-shape": "fixed_shapes", "no-verify": "verify=False",
    "ops": "extra_passes", "option": "options", "shape": "shapes",
}  # fmt: skip
#: What the user ran is left alone, in backticks; sizes are taken together; a value in capitals
#: stands for any.
_FLAGS = re.compile(
    r"(?P<code>`[^`]*`)"
    r"|(?P<sizes>--shape [^\s=]+=\d+(?: --shape [^\s=]+=\d+)*)"
    r"|(?<![\w-])--(?P<flag>[a-z][a-z-]*)(?: (?:\[?[A-Z]+\]?[=.])?[A-Z]+(?:\.[a-z]+)?\b)?"
)
_names_flags: ContextVar[bool] = ContextVar("names_flags", default=False)


@contextmanager
def naming_flags() -> Iterator[None]:
    """Let messages name flags, as the command line does, and not parameters of Python."""
    token = _names_flags.set(True)
    try:
        yield
    finally:
        _names_flags.reset(token)


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
        text = f"{line}; {self.fix}" if self.fix else line
        text = " ".join(map(_shortened, text.split()))
        return text if _names_flags.get() else _FLAGS.sub(_parameter, text)


def _parameter(found: re.Match[str]) -> str:
    if found["code"]:
        return found["code"]
    if found["sizes"]:
        sizes = (part.rpartition("=") for part in found["sizes"].split()[1::2])
        return f"shapes={{{', '.join(f'{name!r}: {size}' for name, _, size in sizes)}}}"
    flag = found["flag"]
    return _PARAMETERS.get(flag, flag.replace("-", "_"))


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


class LoadError(RunError):
    """ONNX Runtime did not make a session: no inputs were tried."""


class MissingDependencyError(UserError):
    """A runtime or toolchain that the call needs is not installed."""


class StaleInstallationError(MissingDependencyError):
    """The native part of ortkit was built from other sources than the code that uses it."""


class CheckError(OrtkitError):
    """A check that the user asked for did not hold: exit code 1."""

    exit_code: ClassVar[int] = 1


class InternalError(OrtkitError):
    """A bug in ortkit: exit code 70, with a traceback and a request to report it."""


class KernelError(InternalError):
    """A kernel toolchain failed on a region that its backend had accepted."""

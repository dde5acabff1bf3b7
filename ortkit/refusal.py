"""Why something is not done: a value between packages, an exception inside of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Refused:
    """Why something cannot be done: a value, not an error."""

    reason: str
    fix: str = ""
    """What the user can give or change so that it can be done; empty if nothing helps."""


class RefusedError(Exception):
    """Carry a refusal up to a function that returns it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.refused = Refused(reason, fix)


def needed(value: T | Refused) -> T:
    """Return a value that there is.

    Raises:
        RefusedError: It is a refusal.
    """
    if isinstance(value, Refused):
        raise RefusedError(value.reason, value.fix)
    return value


def refusals(function: Callable[P, T]) -> Callable[P, T | Refused]:
    """Make a function return the refusal that it raises as a `RefusedError`."""

    @wraps(function)
    def returning(*args: P.args, **kwargs: P.kwargs) -> T | Refused:
        try:
            return function(*args, **kwargs)
        except RefusedError as error:
            return error.refused

    return returning

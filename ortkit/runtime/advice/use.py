"""How a model will be used: what advice on its settings is for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, get_args

from ortkit.errors import UserError

Goal: TypeAlias = Literal["latency", "throughput"]
"""The least 95th percentile of a run, or the most runs a second."""
_MOST = {"callers": 256, "sessions": 64}


@dataclass(frozen=True)
class Use:
    """How a model will be used, and for how long to measure that."""

    callers: int = 1
    """Run calls at a time of each session."""
    sessions: int = 1
    """Processes at a time, each with a session of its own."""
    goal: Goal = "latency"
    seconds: float = 3.0
    """Time of the runs for each settings measured, over all rounds, in s."""
    timeout_seconds: float = 600.0
    """For a load, a first run or a turn."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UserError: One makes no sense.
        """
        for name, most in _MOST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise UserError(f"cannot be {value!r}", where=name, fix=f"give 1 to {most}")
        if self.goal not in (known := get_args(Goal)):
            problem = f"{self.goal!r} is not known"
            raise UserError(problem, where="goal", fix=f"use {' or '.join(known)}")
        for name in ("seconds", "timeout_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UserError(f"cannot be {value!r}", where=name, fix="give a number above 0")

    @property
    def text(self) -> str:
        """The use in words."""
        calls = "1 run call" if self.callers == 1 else f"{self.callers} run calls"
        where = "in 1 session" if self.sessions == 1 else f"in each of {self.sessions} sessions"
        return f"{calls} at a time {where}, for {self.goal}"

    def to_json(self) -> dict[str, object]:
        """Return the fields that say what was measured."""
        return {name: value for name, value in asdict(self).items() if name != "timeout_seconds"}

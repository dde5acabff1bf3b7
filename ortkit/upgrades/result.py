"""What `ortkit bisect --onnxruntime-optimizers` finds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ortkit.comparison.first_node import FirstNode
from ortkit.runtime.intervals import Speedup

SCHEMA = "ortkit.bisect-optimizers/1"
#: The session option that switches optimizers off in every language; names are separated by `;`.
OPTION = "optimization.disable_specified_optimizers"

Outcome: TypeAlias = Literal["reference", "equal", "different", "fails"]
Verdict: TypeAlias = Literal["sound", "guilty", "not found"]


@dataclass(frozen=True)
class Tried:
    """What a session gave under one level, or with some optimizers off."""

    outcome: Outcome
    reason: str = ""
    """How it differs or fails; empty if it does not."""
    max_error_eps: float | None = None
    """The largest error of an output, in epsilons of its type; None if it does not run."""
    median_ms: float | None = None
    """Median time of its runs, in ms, if they were timed."""

    @property
    def is_bad(self) -> bool:
        """Whether it does not compute what the reference does."""
        return self.outcome in ("different", "fails")

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "max_error_eps": _finite(self.max_error_eps),
            "median_ms": self.median_ms,
        }


def _finite(value: float | None) -> float | None:
    """Return a number as JSON has it: None for an infinite one."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Optimizer:
    """One of ONNX Runtime's own graph optimizers."""

    name: str
    level: str
    """The lowest level at which it runs."""
    modified: bool
    """Whether it changed this model's graph, at the level that is searched."""
    can_be_disabled: bool

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "name": self.name,
            "level": self.level,
            "modified": self.modified,
            "can_be_disabled": self.can_be_disabled,
        }


@dataclass(frozen=True)
class Culprit:
    """An optimizer, or a rule of one, that has to be off."""

    name: str
    group: str
    """The optimizer whose rule it is; empty if it is an optimizer itself."""
    level: str
    effect: Literal["different", "fails", "slower"]
    reason: str
    """What happens with it on."""
    alone_off: Tried | None
    """With nothing but it off; None: it is slower, and the results are right."""
    needs: tuple[str, ...]
    """Others that have to be on for it to do harm; empty: it does so alone."""
    first_node: FirstNode | None
    """Where the graph with it parts from the graph without it."""
    changes: tuple[str, ...]
    """What it does to the graph: `SkipLayerNormalization 0 -> 12`."""
    speedup: Speedup | None = None
    """How many times as fast the model is without it, as it was confirmed."""

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "name": self.name,
            "group": self.group,
            "level": self.level,
            "effect": self.effect,
            "reason": self.reason,
            "alone_off": None if self.alone_off is None else self.alone_off.to_json(),
            "needs": list(self.needs),
            "first_node": None if self.first_node is None else self.first_node.to_json(),
            "changes": list(self.changes),
            "speedup": None if self.speedup is None else self.speedup.to_json(),
        }


@dataclass(frozen=True)
class Workaround:
    """The session option that avoids the culprits."""

    names: tuple[str, ...]
    tried: Tried
    """What a session with this option gives, in a process of its own."""
    speedup: Speedup | None
    """How many times as fast it is as all optimizers together; None: not timed, or they fail."""

    @property
    def value(self) -> str:
        """The option's value."""
        return ";".join(self.names)

    @property
    def python(self) -> str:
        """The option as a line of Python."""
        return f"options.add_session_config_entry({json.dumps(OPTION)}, {json.dumps(self.value)})"

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "option": OPTION,
            "value": self.value,
            "python": self.python,
            "tried": self.tried.to_json(),
            "speedup": None if self.speedup is None else self.speedup.to_json(),
        }


@dataclass(frozen=True)
class OptimizerReport:
    """Everything that was found."""

    model: str
    version: str
    folder: str
    """Folder of ONNX Runtime; empty: the installed one."""
    level: str
    verdict: Verdict
    reason: str
    levels: tuple[tuple[str, Tried], ...]
    optimizers: tuple[Optimizer, ...]
    culprits: tuple[Culprit, ...]
    workaround: Workaround | None
    sessions: int
    """How many were made."""
    notes: tuple[str, ...]
    seconds: float

    def taking(self, seconds: float) -> OptimizerReport:
        """Return it with the time that it took."""
        return replace(self, seconds=seconds)

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit bisect --onnxruntime-optimizers --json`."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "onnxruntime": self.version,
            "onnxruntime_folder": self.folder,
            "level": self.level,
            "verdict": self.verdict,
            "reason": self.reason,
            "levels": [{"level": level, **tried.to_json()} for level, tried in self.levels],
            "optimizers": [optimizer.to_json() for optimizer in self.optimizers],
            "culprits": [culprit.to_json() for culprit in self.culprits],
            "workaround": None if self.workaround is None else self.workaround.to_json(),
            "sessions": self.sessions,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
        }

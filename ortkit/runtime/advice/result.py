"""What was measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ortkit.runtime.advice.use import Goal, Use
from ortkit.runtime.cpu_limits import CpuLimits
from ortkit.runtime.machine import MachineLoad
from ortkit.runtime.settings import SessionSettings

SCHEMA = "ortkit.advise/1"
#: Settings are changed only for a gain of this part, and if every round shows one.
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Round:
    """One round of one row: milliseconds of a run, runs a second over all sessions."""

    p50: float
    p95: float
    per_second: float

    def cost(self, goal: Goal) -> float:
        """Return what is to be small."""
        return self.p95 if goal == "latency" else 1 / self.per_second


@dataclass(frozen=True)
class Measured:
    """Settings and what they take."""

    changes: Mapping[str, object]
    """Fields of `SessionSettings`, other than the session's own."""
    rounds: tuple[Round, ...]
    peak_bytes: int
    """The most that all sessions' processes had resident; -1 where that is not known."""
    problem: str = ""
    """Why there are no rounds."""

    @property
    def label(self) -> str:
        """The settings in words."""
        return label_of(self.changes)

    def middle(self, name: str) -> float:
        """Return a field's median over the rounds."""
        return float(median(getattr(each, name) for each in self.rounds))

    def gain_over(self, other: Measured, goal: Goal) -> float:
        """Return the part of the other's cost that is saved: the median over the rounds."""
        return median(_gains(self, other, goal))

    def is_surely_better(self, other: Measured, goal: Goal) -> bool:
        """Say whether every round is better than the other's, and the median by `LEAST_GAIN`."""
        gains = _gains(self, other, goal)
        return min(gains) > 0 and median(gains) >= LEAST_GAIN

    def to_json(self) -> dict[str, object]:
        """Return the row."""
        names = ("p50", "p95", "per_second")
        return {
            "settings": self.label,
            "changes": dict(self.changes),
            "problem": self.problem,
            "peak_bytes": None if self.peak_bytes < 0 else self.peak_bytes,
            **{name: self.middle(name) if self.rounds else None for name in names},
            "rounds": [{name: getattr(each, name) for name in names} for each in self.rounds],
        }


def _gains(row: Measured, other: Measured, goal: Goal) -> list[float]:
    pairs = zip(row.rounds, other.rounds, strict=True)
    return [1 - mine.cost(goal) / its.cost(goal) for mine, its in pairs]


def label_of(changes: Mapping[str, object]) -> str:
    """Return changed settings in words."""
    if not changes:
        return "as the session is"
    parts = []
    if "threads" in changes:
        count = changes["threads"] or "as many threads as processors"
        parts.append(
            count if isinstance(count, str) else "1 thread" if count == 1 else f"{count} threads"
        )
    if "spinning" in changes:
        parts.append("spinning" if changes["spinning"] else "no spinning")
    if "parallel" in changes:
        parts.append(f"independent nodes in {'parallel' if changes['parallel'] else 'turn'}")
    if "memory_arena" in changes:
        parts.append("arena" if changes["memory_arena"] else "no arena")
    return ", ".join(parts)


@dataclass(frozen=True)
class Advice:
    """The settings to use, and why."""

    use: Use
    limits: CpuLimits
    load: MachineLoad
    rows: Sequence[Measured]
    """In the order in which they were measured; the first is the session as it is."""
    chosen: Measured
    reasons: Sequence[str]
    """One line for each choice, with what was measured."""
    gain: float
    """The part that is saved, of the 95th percentile or of the time for each run; 0: none."""
    settings: SessionSettings
    """All of the chosen ones, for `Session.with_settings`."""

    @property
    def changes(self) -> Mapping[str, object]:
        """Arguments for `Session` and `Session.twin`; empty: nothing is surely better."""
        return self.chosen.changes

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit compare --advise --json`."""
        return {
            "schema": SCHEMA,
            "use": self.use.to_json(),
            "limits": self.limits.to_json(),
            "machine": self.load.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "chosen": {"settings": self.chosen.label, "changes": dict(self.changes)},
            "gain": self.gain,
            "reasons": list(self.reasons),
        }

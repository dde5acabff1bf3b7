"""Two profiles against each other: which work got faster or slower, beyond the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ortkit.graph.analysis.provenance import Alignment
from ortkit.runtime.intervals import CONFIDENCE, Direction, Speedup
from ortkit.runtime.profiling.diff_interval import Medians, median_interval
from ortkit.runtime.profiling.diff_match import Match, match
from ortkit.runtime.profiling.providers import ASYNCHRONOUS

SCHEMA = "ortkit.profile-diff/1"
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """One node as it ran."""

    name: str
    op: str
    origins: tuple[str, ...]
    """Nodes of the model that it stands for, by their labels; empty for what the runtime added."""
    output_bytes: int | None
    """Written in one run; None: not known."""
    provider: str = ""


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two profiles."""

    label: str
    nodes: tuple[Work, ...]
    times_us: tuple[Numbers, ...]
    """Of each process: [nodes, runs] own time of every run; empty if only medians are known."""
    medians_us: Medians
    """[nodes] own time of a run."""
    run_us: Mapping[str, float | None]
    """`median`, `low`, `high` of a whole run without tracing."""
    peak_bytes: int | None
    """Most memory in use during a run, in the arena; None: not known."""


@dataclass(frozen=True)
class Change:
    """What some nodes of A took and what those of B take that do the same work."""

    before: tuple[tuple[str, str], ...]
    """(name, operator) of each node of A; empty for what only B does."""
    after: tuple[tuple[str, str], ...]
    before_us: float
    """Median over the runs."""
    after_us: float
    gain_us: float
    """Median of the differences, positive where B is faster; of medians where A and B did not run
    interleaved."""
    low_us: float | None
    """None if there are too few runs for an interval."""
    high_us: float | None
    direction: Direction
    before_bytes: int | None
    """Written by these nodes in one run."""
    after_bytes: int | None

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        sides = {
            side: [{"name": name, "op": op} for name, op in getattr(self, side)]
            for side in ("before", "after")
        }
        return {**asdict(self), **sides}


@dataclass(frozen=True)
class ProfileDiff:
    """B against A."""

    before: Side
    after: Side
    speedup: Speedup
    """Of whole runs without tracing."""
    changes: tuple[Change, ...]
    """Largest gain first, so that what got slower comes last."""
    matched_by: Literal["model", "name"]
    """Whether nodes were matched through the models, or by equal names only."""
    in_turns: bool
    """Whether A and B ran interleaved, so that what slowed the machine down hit both."""
    notes: tuple[str, ...] = field(default=())

    def slower_by(self) -> float | None:
        """Return the least by which B is slower in whole runs, 0.1 for 10 %; None: not known."""
        return None if self.speedup.high is None else 1 / self.speedup.high - 1

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit profile diff --json`."""
        return {
            "schema": SCHEMA,
            "before": _side_json(self.before),
            "after": _side_json(self.after),
            "speedup": self.speedup.to_json(),
            "matched_by": self.matched_by,
            "in_turns": self.in_turns,
            "changes": [change.to_json() for change in self.changes],
            "notes": list(self.notes),
        }


def diff_profiles(
    before: Side,
    after: Side,
    speedup: Speedup,
    alignment: Alignment | None,
    *,
    in_turns: bool,
    notes: Sequence[str] = (),
) -> ProfileDiff:
    """Compare two profiles.

    The intervals of all changes hold together with `CONFIDENCE`, and each in every process: a
    process has its memory elsewhere, which makes the same kernel faster or slower.

    Args:
        before: A.
        after: B.
        speedup: Of whole runs of B over A, without tracing.
        alignment: How the nodes of the models correspond; None: nodes of equal labels do.
        in_turns: Whether run i of both was taken at about the same time, in every process.
        notes: What else is to be said.
    """
    matches = match(
        [(node.name, node.origins) for node in before.nodes],
        [(node.name, node.origins) for node in after.nodes],
        alignment,
    )
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(matches))
    gains = _paired(before, after, matches, confidence) if in_turns else _separate(
        before, after, matches
    )  # fmt: skip
    first = _sums(before.medians_us.median, [one.before for one in matches])
    second = _sums(after.medians_us.median, [one.after for one in matches])
    if in_turns:
        first = np.median(np.hstack(_summed(before, [one.before for one in matches])), axis=-1)
        second = np.median(np.hstack(_summed(after, [one.after for one in matches])), axis=-1)
    changes = [
        _change(before, after, item, float(first[at]), float(second[at]), gains, at)
        for at, item in enumerate(matches)
    ]
    launching = sorted(
        {node.provider for side in (before, after) for node in side.nodes} & ASYNCHRONOUS
    )
    if launching:
        notes = [
            *notes,
            f"times of nodes on {', '.join(launching)} are the host's, to launch them",
        ]
    changes.sort(key=lambda change: -change.gain_us)
    by: Literal["model", "name"] = "name" if alignment is None else "model"
    return ProfileDiff(before, after, speedup, tuple(changes), by, in_turns, tuple(notes))


def _paired(before: Side, after: Side, matches: Sequence[Match], confidence: float) -> Medians:
    """Return the median differences of interleaved runs, over all processes."""
    first = _summed(before, [one.before for one in matches])
    second = _summed(after, [one.after for one in matches])
    each = [
        median_interval(mine - others, confidence=confidence)
        for mine, others in zip(first, second, strict=True)
    ]
    differences = np.hstack([a - b for a, b in zip(first, second, strict=True)])
    lows = [medians.low for medians in each if medians.low is not None]
    highs = [item.high for item in each if item.high is not None]
    if len(lows) < len(each):
        return Medians(np.median(differences, axis=-1), None, None)
    return Medians(np.median(differences, axis=-1), np.min(lows, axis=0), np.max(highs, axis=0))


def _separate(before: Side, after: Side, matches: Sequence[Match]) -> Medians:
    """Return the differences of medians taken at different times."""
    first, second = before.medians_us, after.medians_us
    mine, others = [item.before for item in matches], [one.after for one in matches]
    gain = _sums(first.median, mine) - _sums(second.median, others)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Medians(gain, None, None)
    return Medians(
        gain,
        _sums(first.low, mine) - _sums(second.high, others),
        _sums(first.high, mine) - _sums(second.low, others),
    )


def _summed(side: Side, rows: Sequence[Sequence[int]]) -> list[Numbers]:
    """Return for each process [matches, runs], the time of the rows of each match together."""
    match_of = np.array([at for at, some in enumerate(rows) for _ in some], np.int64)
    chosen = np.array([row for some in rows for row in some], np.int64)
    found = []
    for times in side.times_us:
        sums = np.zeros((len(rows), times.shape[1]))
        np.add.at(sums, match_of, times[chosen])
        found.append(sums)
    return found


def _sums(values: Numbers, rows: Sequence[Sequence[int]]) -> Numbers:
    return np.array([float(values[list(some)].sum()) for some in rows], np.float64)


def _change(
    before: Side, after: Side, one: Match, first: float, second: float, gains: Medians, at: int
) -> Change:
    low = None if gains.low is None else float(gains.low[at])
    high = None if gains.high is None else float(gains.high[at])
    direction: Direction = "no difference"
    if low is None or high is None:
        direction = "not known"
    elif low > 0 or high < 0:
        direction = "faster" if low > 0 else "slower"
    return Change(
        tuple((before.nodes[row].name, before.nodes[row].op) for row in one.before),
        tuple((after.nodes[row].name, after.nodes[row].op) for row in one.after),
        first,
        second,
        float(gains.median[at]),
        low,
        high,
        direction,
        _bytes(before, one.before),
        _bytes(after, one.after),
    )


def _bytes(side: Side, rows: Sequence[int]) -> int | None:
    sizes = [side.nodes[row].output_bytes for row in rows]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _side_json(side: Side) -> dict[str, object]:
    return {
        "source": side.label,
        "nodes": len(side.nodes),
        "run_us": dict(side.run_us),
        "peak_bytes": side.peak_bytes,
    }

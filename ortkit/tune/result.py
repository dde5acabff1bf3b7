"""What tuning found: the content of `ortkit tune --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

SCHEMA = "ortkit.tune/1"


@dataclass(frozen=True)
class TunedRegion:
    """One region at the sizes of one bucket."""

    op: str
    nodes: int
    """Of the model that run it at these sizes."""
    sizes: tuple[int, ...]
    """Its named sizes, at which it was timed."""
    share: float
    """Part of the time of the model's nodes before tuning, 0 to 1."""
    kernels: int | None
    """How many there are to choose from, the default among them; None: more than are counted."""
    trials: int
    """How many were timed beside the default, in earlier runs too."""
    new_trials: int
    """How many of them by this run."""
    failed: int
    """Trials without times: they did not compile, or computed something else."""
    choices: str
    """Of the best one, empty for the default."""
    gain: float
    """How many times as fast as the default it is, 1 for the default."""
    default_us: float | None
    """Median of the default as confirmed by this run, None if nothing was confirmed by it."""
    best_us: float | None
    """The same of the best one."""
    problem: str
    """Why it was not tuned any further, empty if nothing was wrong."""


@dataclass(frozen=True)
class Alternative:
    """Another way to run the whole model, timed beside the one that `optimize` makes."""

    what: str
    ratio: float | None
    """How many times as fast it is, None if it was not timed."""
    low: float | None
    """Bounds of the ratio (95 %), None if there were too few rounds."""
    high: float | None
    direction: str
    """`faster`, `slower`, `no difference` or `not known`."""
    problem: str
    """Why it was not timed, empty if it was."""


@dataclass(frozen=True)
class TuneResult:
    """What was tried, and what came of it."""

    source: str
    machine: str
    level: str
    """Of the processor that the kernels are for."""
    inputs: Mapping[str, tuple[int, ...]]
    """The shapes at which the model ran."""
    regions: tuple[TunedRegion, ...]
    alternatives: tuple[Alternative, ...]
    trials: int
    """Of this run."""
    predicted_gain: float
    """Of the whole model, from shares and gains; not measured."""
    files: tuple[str, ...]
    """Where the database was written."""
    notes: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return {"schema": SCHEMA, **asdict(self)}

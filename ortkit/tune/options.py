"""What the caller may ask of `tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ortkit.errors import UserError
from ortkit.optimization.options import Precision
from ortkit.targets.catalog import KINDS, Kind, traits_of
from ortkit.targets.cpu import runs_here
from ortkit.targets.target import Target


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class TuneOptions:
    """How to tune; the defaults are those of `ortkit tune`."""

    target: Kind = "cpu"
    trials: int | None = None
    """Kernels to try at most, of all regions together; None: as many as the time allows."""
    seconds: float | None = None
    """Time to take; None: as long as the trials take."""
    level: int = 2
    """See `OptimizeOptions`."""
    precision: Precision = "fp32"
    """That the model is optimized to; see `OptimizeOptions`."""
    cpu: str = "native"
    """The processor level that the kernels are for; what measures them has to run it."""
    inputs: Path | None = None
    """An npz file with inputs of the size that matters."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    """Numbers for named sizes."""
    threads: int = 0
    """Of a session of the whole model; 0: ONNX Runtime decides. Kernels are timed on one."""
    db: Path | None = None
    """A database file to write in addition to the cache."""
    merge: tuple[Path, ...] = ()
    """Database files to take over."""
    runner: str = "local"
    """Who measures kernels: `local`, `rpc://HOST:PORT/KEY` or `ray`; see `runners.runner_for`."""
    search: str = "vectors"
    """Of kernels that users wrote: `vectors`, through choices of ours, or `meta-schedule`."""
    progress: Callable[[str], None] = _silent
    """Called with what is being done, and what was found so far."""

    def __post_init__(self) -> None:
        if self.target not in KINDS:
            raise UserError(f"nothing is tuned for {self.target!r}", where="--target")
        if self.trials is not None and self.trials < 0:
            raise UserError(f"{self.trials} trials", where="--trials", fix="give 0 or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UserError(f"{self.seconds:g} s", where="--seconds", fix="give more than 0")
        if self.threads < 0:
            raise UserError(f"{self.threads} threads", where="--threads", fix="use 0 or more")
        traits = traits_of(self.target)
        if traits.is_host and not runs_here(Target(self.target, self.cpu).resolved().level):
            raise UserError(
                f"kernels for {self.cpu} do not run on this machine",
                where="--cpu",
                fix="tune them on one that does, and bring the database with --db",
            )
        if not traits.has_remote_runners and self.runner != "local":
            raise UserError(
                f"kernels for GPUs are measured on this machine, not by {self.runner}",
                where="--runner",
                fix="leave it out",
            )

"""What a profile knows in addition to the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import About


@dataclass(frozen=True)
class Joined:
    """What the model adds to the trace, by signature."""

    work: Sequence[CallWork | None]
    domains: Sequence[str | None]
    origins: Sequence[tuple[str, ...]]
    regions: Sequence[int | None]
    """Nodes of one number are neighbours that one kernel could compute; None: the others."""
    region_bytes: Mapping[int, int]
    """What such a kernel would have to read and write."""


@dataclass(frozen=True)
class Context:
    """What a profile says in addition to the trace."""

    about: About = field(default_factory=About)
    plain_us: Sequence[float] = ()
    """Runs that were not traced."""
    peaks: Peaks | None = None
    joined: Joined | None = None
    notes: tuple[str, ...] = ()
    device_times: bool = False
    """Whether the trace's device events are all that there were."""

"""What to do about the nodes that take most of the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """One thing that may be done, with the numbers that speak for it."""

    title: str
    detail: str
    """What was seen, with its numbers, and what to do."""
    rows: tuple[int, ...]
    """The nodes concerned, as places in `Profile.rows`; none: the run as a whole."""
    gain_us: float
    """What a run gains at most."""

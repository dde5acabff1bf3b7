"""What `ortkit memory --layout` found: times of each node in each layout and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LayoutTime:
    """One way to run a node."""

    layout: str
    """`NCHW`, `NHWC`, `NCHWc` (blocked), `row-major`, ..."""
    dtype: str
    by: str
    """`onnxruntime` or `ortkit`."""
    kernel_us: float | None
    """What the operator itself takes; None if it was not measured."""
    conversion_us: float | None
    """What it takes to convert the data before and after it, weights not included."""
    noise: float
    """By how much it differs from itself."""
    problem: str
    """Why there are no times."""

    @property
    def name(self) -> str:
        """Layout, type, and whose kernel if it is ours."""
        ours = "" if self.by == "onnxruntime" else f" by {self.by}"
        return f"{self.layout} {self.dtype}{ours}"

    @property
    def total_us(self) -> float | None:
        """With conversions."""
        if self.kernel_us is None or self.conversion_us is None:
            return None
        return self.kernel_us + self.conversion_us


@dataclass(frozen=True)
class NodeLayouts:
    """One operator at given sizes, in every layout and type."""

    op: str
    nodes: tuple[str, ...]
    described: str
    share: float
    """Part of a run without optimizations that these nodes take, 0 to 1."""
    times: tuple[LayoutTime, ...]
    """Its own layout and type first."""

    @property
    def wanted(self) -> LayoutTime | None:
        """The fastest operator of its own type, whatever conversion costs."""
        return _fastest(self._exact, lambda layout_time: layout_time.kernel_us)

    @property
    def best(self) -> LayoutTime | None:
        """The fastest of its own type with conversions, itself if nothing is beyond the noise."""
        own, best = self.times[0], _fastest(self._exact, lambda layout_time: layout_time.total_us)
        if best is None or not _is_faster(best.total_us, own.total_us, best, own):
            return own if own.total_us is not None else best
        return best

    @property
    def narrower(self) -> tuple[LayoutTime, ...]:
        """Other types whose operator is faster than its own beyond the noise: other numbers."""
        own = self.times[0]
        return tuple(
            time
            for time in self.times
            if time.dtype != own.dtype and _is_faster(time.kernel_us, own.kernel_us, time, own)
        )

    @property
    def advice(self) -> str:
        """What follows for its own type, beyond the noise."""
        own, wanted, best = self.times[0], self.wanted, self.best
        if wanted is None or best is None or own.total_us is None or best.total_us is None:
            return "not known: its own layout was not measured"
        if best is not own:
            ratio = own.total_us / best.total_us
            return f"{best.name}: {ratio:.2f} times as fast, conversions included"
        if _is_faster(wanted.kernel_us, own.kernel_us, wanted, own):
            return f"{wanted.name} only if its neighbours have it too: conversion costs more"
        return "as it is"

    @property
    def _exact(self) -> list[LayoutTime]:
        return [time for time in self.times if time.dtype == self.times[0].dtype]


def _fastest(
    times: Sequence[LayoutTime], key: Callable[[LayoutTime], float | None]
) -> LayoutTime | None:
    known = [
        (value, index) for index, time in enumerate(times) if (value := key(time)) is not None
    ]
    return times[min(known)[1]] if known else None


def _is_faster(
    first: float | None, second: float | None, one: LayoutTime, other: LayoutTime
) -> bool:
    """Say whether the first number is lower beyond the noise of both."""
    if first is None or second is None:
        return False
    return first * (1 + max(one.noise, other.noise)) < second


@dataclass(frozen=True)
class Layouts:
    """All nodes that were measured."""

    nodes: tuple[NodeLayouts, ...]
    left_out: int
    """How many that take less time were not measured."""
    threads: int

    def to_json(self) -> Mapping[str, object]:
        """Return the fields as JSON types."""
        nodes = [
            {
                **asdict(node),
                "wanted": None if node.wanted is None else node.wanted.name,
                "best": None if node.best is None else node.best.name,
                "advice": node.advice,
            }
            for node in self.nodes
        ]
        return {"nodes": nodes, "left_out": self.left_out, "threads": self.threads}

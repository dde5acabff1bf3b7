"""What `--measure` found: the content of a report's `measurement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

#: Two numbers that differ by less say nothing, however small the noise that was seen.
LEAST_NOISE = 0.01

Verdict = Literal["faster", "slower", "no difference"]


@dataclass(frozen=True)
class Ceiling:
    """What would be left if everything but the heavy operators were free."""

    milliseconds: float
    speedup: float
    """Of the original; no graph optimization of everything else can give more."""
    heavy_share: float
    """Part of a run of the original that the heavy operators take, 0 to 1."""
    heavy_ops: tuple[str, ...]
    """Those that the model has."""


@dataclass(frozen=True)
class Compared:
    """Two variants, timed there and back in each round."""

    before: float
    """Median over its turns, in the unit that was given."""
    after: float
    ratio: float
    """How many times as fast `after` is."""
    noise: float
    """By how much a variant differs from itself between its first and second turns, 0.01 or more:
    ratios up to 1 + noise are no difference."""

    @property
    def verdict(self) -> Verdict:
        """Say whether `after` is faster beyond the noise."""
        if self.ratio > 1 + self.noise:
            return "faster"
        return "slower" if self.ratio < 1 / (1 + self.noise) else "no difference"


def compare(before: Sequence[float], after: Sequence[float]) -> Compared:
    """Compare times taken in the order before, after, after, before, and so on.

    Args:
        before: One time for each turn; first and second turns of a round follow each other.
        after: As many.
    """
    noise = LEAST_NOISE
    for times in (before, after):
        drift = median(times[::2]) / median(times[1::2])
        noise = max(noise, drift - 1, 1 / drift - 1)
    first, second = median(before), median(after)
    return Compared(first, second, first / second, noise)


@dataclass(frozen=True)
class RegionTiming:
    """One fused operator at the sizes of one or more of its nodes."""

    op: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    """Type and shape of each, such as `float[1, 128, 768]`."""
    body_us: float | None
    """As ONNX Runtime runs the function without the library; None if it could not be timed."""
    kernel_us: float | None
    ratio: float | None
    noise: float | None
    kept: bool
    from_cache: bool
    problem: str
    """Why it was not timed, empty if it was."""


@dataclass(frozen=True)
class ModelTiming:
    """The whole model: as it came, and as it goes out."""

    before_ms: float
    after_ms: float
    ratio: float
    noise: float
    verdict: Verdict
    kernels_ratio: float | None
    """What the kernels that are kept give on top of the rewrites, None if there are none."""
    kernels_verdict: Verdict | None


@dataclass(frozen=True)
class Measurement:
    """What was timed, and what followed from it."""

    machine: str
    threads: int
    """Of a session; 0: ONNX Runtime decides."""
    inputs: Mapping[str, tuple[int, ...]]
    regions: tuple[RegionTiming, ...]
    model: ModelTiming | None
    ceiling: Ceiling | None
    gap_closed: float | None
    """Part of the way from the original's speed to the ceiling, 0 to 1 or more."""
    dropped: tuple[str, ...]
    """Ids of regions whose kernels do not pay."""
    notes: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return asdict(self)

"""Statistics of alternating runs: ratios with intervals, where runs of a process hang together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 2000
#: Resamples that are drawn together, which bounds the memory.
_AT_ONCE = 64


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the second of two is as the first, with its interval."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Return it for a table."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio_of_medians(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, seed: int = 0
) -> Ratio:
    """Compare two variants by the median of all runs.

    Args:
        before: Seconds by process, then by run; aligned with `after` process by process.
        after: The same for the second variant.
        seed: Of the resampling.

    Returns:
        Median over median, with the percentile bootstrap's interval: processes are drawn first,
        and the runs of a drawn process then. What a process gets for its life, such as where its
        memory lies, is thereby drawn as often as there are processes, not as there are runs.
        Runs at one place of both lists were taken one after the other, and are drawn together.
    """
    lengths = [min(len(a), len(b)) for a, b in zip(before, after, strict=True)]
    if not lengths or min(lengths) == 0:
        raise ValueError("no runs to compare")
    pairs = [np.array([a[:n], b[:n]]) for a, b, n in zip(before, after, lengths, strict=True)]
    everything = np.concatenate(pairs, axis=1)
    value = float(np.median(everything[0]) / np.median(everything[1]))
    rng = np.random.default_rng(seed)
    resamples = _RESAMPLES if everything.shape[1] < 2000 else _RESAMPLES // 8
    counts = [min(_AT_ONCE, resamples - at) for at in range(0, resamples, _AT_ONCE)]
    found = np.concatenate([_ratios(pairs, count, rng) for count in counts])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, (tail, 1 - tail))
    return Ratio(value, float(low), float(high))


def _ratios(pairs: Sequence[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` resamples of processes [2, runs] and return their ratios [count]."""
    lengths = np.array([pair.shape[1] for pair in pairs])
    longest = int(lengths.max())
    table = np.full((2, len(pairs), longest), np.nan)
    for process, one in enumerate(pairs):
        table[:, process, : one.shape[1]] = one
    chosen = rng.integers(0, len(pairs), (count, len(pairs)))
    drawn_lengths = lengths[chosen][..., None]
    runs = (rng.random((count, len(pairs), longest)) * drawn_lengths).astype(np.intp)
    drawn = table[:, chosen[..., None], runs]
    drawn[:, np.arange(longest) >= drawn_lengths] = np.nan
    median = np.median if (lengths == longest).all() else np.nanmedian
    before, after = median(drawn.reshape(2, count, -1), axis=2)
    return np.asarray(before / after)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    if not values:
        raise ValueError("the mean of nothing")
    return math.exp(sum(math.log(value) for value in values) / len(values))


def closed_part(ratio: float, ceiling: float) -> float | None:
    """Return how much of the way from 1 to the ceiling a ratio goes; None if there is no way.

    Counted in time, as a part of what is not heavy that is gone.
    """
    room = 1 - 1 / ceiling
    return (1 - 1 / ratio) / room if room > 1e-3 else None

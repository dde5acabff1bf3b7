"""What timed rounds say: medians, their intervals, and whether one is faster than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np

CONFIDENCE = 0.95
#: Fewer rounds than this say nothing about the spread.
FEWEST_ROUNDS = 5
#: Two times that differ by less say nothing, however small the noise that was seen.
LEAST_NOISE = 0.01
_RESAMPLES = 2000
#: Student's t at 0.975 for 1, 2, ... degrees of freedom (tables; the last one for more, too).
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip

Direction = Literal["faster", "slower", "no difference", "not known"]
Rounds: TypeAlias = Sequence[Sequence[float] | np.ndarray]
"""Seconds by process and round."""


@dataclass(frozen=True)
class Interval:
    """A number with the bounds between which it lies with `CONFIDENCE`."""

    value: float
    low: float | None
    """None if there are too few rounds for an interval."""
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Speedup:
    """How many times faster the second variant is than the first, with its interval."""

    ratio: float
    """Median over median."""
    low: float | None
    """None if there are too few rounds for an interval."""
    high: float | None
    confidence: float
    direction: Direction

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def speedup(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Speedup:
    """Compare two lists of times taken in the same rounds of one process each."""
    return speedup_of(([*before],), ([*after],), seed=seed)


def speedup_of(before: Rounds, after: Rounds, *, floor: float = 0.0, seed: int = 0) -> Speedup:
    """Compare times taken in the same rounds, of one process after the other.

    The interval is the percentile bootstrap's over processes and, within each, over rounds in
    common. What slowed a whole round down does not widen it, but what differs from one process
    to the next (where its memory came to lie) does.

    Args:
        before: The first variant's.
        after: The second's; as many rounds in each process.
        floor: What a variant differs from itself by; ratios up to 1 + floor are no difference.
        seed: Of the resampling.
    """
    ratio = _median(before) / _median(after)
    if sum(map(len, before)) < FEWEST_ROUNDS:
        return Speedup(ratio, None, None, CONFIDENCE, "not known")
    first, second = _resampled((before, after), seed)
    low, high = _bounds(first / second)
    return Speedup(ratio, low, high, CONFIDENCE, _direction(ratio, low, high, floor))


def median_of(rounds: Rounds, *, seed: int = 0) -> Interval:
    """Return the median over all rounds, with its interval as in `speedup_of`."""
    value, count = _median(rounds), sum(map(len, rounds))
    if count < FEWEST_ROUNDS:
        return Interval(value, None, None, count)
    low, high = _bounds(_resampled((rounds,), seed)[0])
    return Interval(value, low, high, count)


def noise_floor(control: Speedup, variants: Sequence[Rounds] = ()) -> float:
    """Return by how much a variant, compared with itself, may be off; infinite if not known.

    Args:
        control: A variant against itself.
        variants: All that were timed together, each over two processes or more. What is left
            of their medians, where each has a speed and each set of processes has one, shows
            what processes differ by (a randomized block design; Student's t at `CONFIDENCE`).
    """
    if control.low is None or control.high is None:
        return float("inf")
    return max(LEAST_NOISE, control.high - 1, 1 / control.low - 1, _between_processes(variants))


def _between_processes(variants: Sequence[Rounds]) -> float:
    processes = min((len(rounds) for rounds in variants), default=0)
    freedom = (len(variants) - 1) * (processes - 1)
    if (
        len(variants) < 2
        or processes < 2
        or any(len(each) == 0 for rounds in variants for each in rounds)
    ):
        return 0.0
    medians = np.log([[np.median(each) for each in rounds[:processes]] for rounds in variants])
    left = medians - medians.mean(0) - medians.mean(1, keepdims=True) + medians.mean()
    of_a_ratio = np.sqrt(np.square(left).sum() / freedom * 2 / processes)
    return float(np.expm1(_STUDENT[min(freedom, len(_STUDENT)) - 1] * of_a_ratio))


def _direction(ratio: float, low: float, high: float, floor: float) -> Direction:
    if low > 1 and ratio > 1 + floor:
        return "faster"
    return "slower" if high < 1 and ratio < 1 / (1 + floor) else "no difference"


def _median(rounds: Rounds) -> float:
    return float(np.median(_joined(rounds)))


def _joined(rounds: Rounds) -> np.ndarray:
    return np.concatenate([np.asarray(each, float) for each in rounds])


def _resampled(variants: Sequence[Rounds], seed: int) -> list[np.ndarray]:
    """Return `_RESAMPLES` medians of each variant, of rounds drawn alike for all of them."""
    random = np.random.default_rng(seed)
    lengths = np.asarray([len(each) for each in variants[0]])
    starts = np.cumsum(lengths) - lengths
    usable = np.flatnonzero(lengths)
    each = max(1, round(float(lengths[usable].mean())))
    # First processes, then rounds within each of them.
    chosen = random.choice(usable, (_RESAMPLES, len(usable), 1))
    within = random.random((_RESAMPLES, len(usable), each)) * lengths[chosen]
    picks = (starts[chosen] + within.astype(np.int64)).reshape(_RESAMPLES, -1)
    return [np.median(_joined(rounds)[picks], axis=1) for rounds in variants]


def _bounds(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)

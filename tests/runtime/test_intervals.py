"""What is claimed of timed rounds, and what is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortkit.runtime.intervals import LEAST_NOISE, Speedup, median_of, noise_floor, speedup_of
from tests.sampling import repeats


def rounds(seed: int, *, mean: float = 1.0, between: float = 0.0) -> list[list[float]]:
    """Return 3 processes of 15 rounds; `between` is what a process as a whole is off by."""
    random = np.random.default_rng(seed)
    return [
        (random.normal(mean, 0.02, 15) * math.exp(random.normal(0, between))).tolist()
        for _ in range(3)
    ]


def test_a_clear_difference_is_found() -> None:
    found = speedup_of(rounds(0), rounds(1, mean=0.5), floor=0.05)
    assert found.direction == "faster"
    assert found.low is not None and found.high is not None
    assert 1.9 < found.low < found.ratio < found.high < 2.1
    assert speedup_of(rounds(0, mean=0.5), rounds(1), floor=0.05).direction == "slower"


def test_what_differs_between_processes_is_seldom_taken_for_a_difference() -> None:
    claims = {"with": 0, "without": 0}
    count = repeats(200, 60)
    for seed in range(0, 3 * count, 3):
        first, second, again = (rounds(seed + i, between=0.05) for i in range(3))
        floor = noise_floor(speedup_of(first, again), (first, second, again))
        claims["with"] += speedup_of(first, second, floor=floor).direction != "no difference"
        claims["without"] += speedup_of(first, second).direction != "no difference"
    assert claims["with"] <= 0.05 * count  # what the intervals promise
    assert claims["without"] > 2 * claims["with"]


def test_a_difference_within_the_floor_is_none() -> None:
    found = speedup_of([[1.05] * 10], [[1.0] * 10], floor=0.06)
    assert found.low == pytest.approx(1.05)
    assert found.direction == "no difference"
    assert speedup_of([[1.05] * 10], [[1.0] * 10], floor=0.04).direction == "faster"
    assert speedup_of([[1.0] * 10], [[1.05] * 10], floor=0.04).direction == "slower"


def test_the_floor_is_the_farther_end_of_the_control() -> None:
    def control(low: float | None, high: float | None) -> Speedup:
        return Speedup(1.0, low, high, 0.95, "no difference")

    assert noise_floor(control(0.8, 1.1)) == pytest.approx(0.25)
    assert noise_floor(control(0.95, 1.2)) == pytest.approx(0.2)
    assert noise_floor(control(0.999, 1.001)) == LEAST_NOISE
    assert noise_floor(control(None, None)) == math.inf


def test_the_floor_knows_what_processes_differ_by() -> None:
    quiet = Speedup(1.0, 1.0, 1.0, 0.95, "no difference")
    # Logarithms of the medians: a speed for each variant, one for each process, and +-e.
    e = 0.01
    rows = [
        [
            [math.exp(speed + drift + sign)] * 3
            for drift, sign in zip((0.3, 0.0, -0.1), signs, strict=True)
        ]
        for speed, signs in ((0.0, (e, -e, 0.0)), (1.0, (-e, e, 0.0)))
    ]
    # Two degrees of freedom, sum of squares 4e^2: a ratio is off by sqrt(2e^2 * 2/3).
    wanted = math.expm1(4.303 * math.sqrt(4 * e * e / 2 * 2 / 3))
    assert noise_floor(quiet, rows) == pytest.approx(wanted)
    assert noise_floor(quiet, [each[:1] for each in rows]) == LEAST_NOISE


def test_few_rounds_have_a_median_and_no_interval() -> None:
    found = median_of([[1.0, 2.0], [3.0]])
    assert (found.value, found.low, found.high, found.rounds) == (2.0, None, None, 3)
    gain = speedup_of([[2.0, 2.0], []], [[1.0, 1.0], []])
    assert (gain.ratio, gain.low, gain.direction) == (2.0, None, "not known")


def test_an_interval_of_a_median_holds_it() -> None:
    found = median_of(rounds(5, between=0.05))
    assert found.low is not None and found.high is not None
    assert found.low < found.value < found.high
    assert found.rounds == 45

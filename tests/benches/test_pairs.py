"""Statistics of the benches: intervals cover what they claim, and see what they should."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.benches.pairs import closed_part, geometric_mean, ratio_of_medians


def _times(
    rng: np.random.Generator, processes: int, runs: int, *, ratio: float, between: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Times of two variants: noise of every run, and luck that a process has for its life."""
    both = []
    for middle in (ratio, 1.0):
        luck = np.exp(between * rng.standard_normal((processes, 1)))
        noise = np.exp(0.03 * np.abs(rng.standard_normal((processes, runs))))
        both.append((middle * luck * noise).tolist())
    return both[0], both[1]


def test_a_ratio_is_of_all_medians() -> None:
    found = ratio_of_medians([[2.0, 2.0], [6.0]], [[1.0, 1.0], [1.0]])
    assert found.value == 2.0
    assert found.low <= 2.0 <= found.high


def test_runs_that_do_not_scatter_have_no_interval() -> None:
    found = ratio_of_medians([[3.0] * 5] * 3, [[2.0] * 5] * 3)
    assert (found.low, found.high) == (1.5, 1.5)
    assert found.text() == "1.500 [1.500, 1.500]"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ratio", [1.0, 1.05, 2.0])
def test_an_interval_covers_the_ratio(ratio: float) -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for seed in range(60):
        before, after = _times(rng, 12, 5, ratio=ratio, between=0.01)
        found = ratio_of_medians(before, after, seed=seed)
        inside += found.low <= ratio <= found.high
    assert inside >= 51, "of 60 intervals at 95 % some 57 cover, fewer than 51 once in 200 times"


def test_luck_of_processes_widens_the_interval() -> None:
    rng = np.random.default_rng(2)
    widths = []
    for between in (0.0, 0.1):
        found = ratio_of_medians(*_times(rng, 6, 50, ratio=1.0, between=between))
        widths.append(found.high - found.low)
    assert widths[1] > 4 * widths[0]


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no runs"):
        ratio_of_medians([], [])
    with pytest.raises(ValueError, match="no runs"):
        ratio_of_medians([[]], [[1.0]])
    with pytest.raises(ValueError, match="mean of nothing"):
        geometric_mean([])


def test_means_and_parts() -> None:
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    # A fifth is not heavy: at 1 / 0.9 half of it is gone, at the ceiling all.
    assert closed_part(1 / 0.9, 1 / 0.8) == pytest.approx(0.5)
    assert closed_part(1 / 0.8, 1 / 0.8) == pytest.approx(1.0)
    assert closed_part(1.0, 1 / 0.8) == pytest.approx(0.0)
    assert closed_part(1.1, 1.0) is None

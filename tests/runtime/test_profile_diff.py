"""Comparing profiles: which nodes correspond, and what is claimed of their times."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.runtime.profiling.diff_interval import lower_rank, median_interval


@pytest.mark.parametrize(
    ("count", "rank"), [(1, None), (5, None), (6, 0), (10, 1), (20, 5), (50, 17), (100, 39)]
)
def test_ranks_are_those_of_the_tables(count: int, rank: int | None) -> None:
    # Source: Conover, "Practical Nonparametric Statistics", intervals of the median at 95 %.
    assert lower_rank(count, 0.95) == rank


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    times = np.random.default_rng(0).exponential(1, (4000, 31))
    found = median_interval(times)
    assert found.low is not None and found.high is not None
    held = (found.low <= np.log(2)) & (np.log(2) <= found.high)
    assert 0.945 < held.mean() < 0.985
    wider = median_interval(times, confidence=0.999)
    assert wider.low is not None and (wider.low <= found.low).all()


def test_too_few_times_have_no_interval() -> None:
    found = median_interval(np.array([[3.0, 1.0, 2.0]]))
    assert (found.median.tolist(), found.low, found.high) == ([2.0], None, None)

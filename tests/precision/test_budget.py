"""As many products as gain within the budget, the least harmful first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from ortkit.precision.budget import Trial, choose, order_of, without_next


def measure(harms: Sequence[float], asked: list[int] | None = None):
    """Return a model whose errors add up like sides of right-angled triangles."""

    def measured(choices: Sequence[Sequence[bool]]) -> list[float]:
        if asked is not None:
            asked.append(len(choices))
        return [
            math.sqrt(sum(harm**2 for harm, taken in zip(harms, flags, strict=True) if taken))
            for flags in choices
        ]

    return measured


def test_all_are_lowered_where_the_budget_allows() -> None:
    harms = [0.01, 0.02, 0.001]
    found = choose([Trial(harm, 10.0) for harm in harms], 0.05, measure(harms))
    assert found.flags == (True, True, True)
    assert found.error == pytest.approx(math.hypot(0.01, 0.02, 0.001))
    assert [point.lowered for point in found.curve] == [0, 1, 2, 3]
    assert found.curve[-1].saved_us == 30.0


def test_the_most_harmful_go_back_first() -> None:
    harms = [0.01, 0.2, 0.001]
    found = choose([Trial(harm, 10.0) for harm in harms], 0.05, measure(harms))
    assert found.flags == (True, False, True)


def test_harm_is_weighed_against_time() -> None:
    trials = [Trial(0.02, 1.0), Trial(0.03, 100.0)]
    assert order_of(trials) == (1, 0)
    # By squares: twice the harm must save four times as much.
    assert order_of([Trial(0.02, 1.0), Trial(0.03, 1.8)]) == (0, 1)
    assert order_of([Trial(0.02, 1.0), Trial(0.03, 2.7)]) == (1, 0)


def test_what_is_no_faster_is_not_lowered() -> None:
    trials = [Trial(0.0, -1.0), Trial(0.01, None), Trial(0.0, 0.0)]
    assert order_of(trials) == (1,)


def test_what_is_not_timed_counts_like_the_mean_of_others() -> None:
    trials = [Trial(0.02, 100.0), Trial(0.02, None), Trial(0.02, 300.0), Trial(0.0, -1.0)]
    assert order_of(trials) == (2, 1, 0)


def test_the_curve_sums_what_was_timed() -> None:
    trials = [Trial(0.01, 100.0), Trial(0.01, None)]
    found = choose(trials, 0.05, measure([0.01, 0.01]))
    assert found.curve[-1].saved_us == 100.0


@pytest.mark.parametrize("count", [40, 100])
def test_many_products_are_searched_in_two_measurements(count: int) -> None:
    harms = [0.001 * (index + 1) for index in range(count)]
    asked: list[int] = []
    budget = math.sqrt(sum(harm**2 for harm in harms[:23])) + 1e-9
    found = choose([Trial(harm, 1.0) for harm in harms], budget, measure(harms, asked))
    assert found.flags == tuple(index < 23 for index in range(count))
    assert len(asked) == 2
    assert sum(asked) < 30


def test_nothing_fits() -> None:
    found = choose([Trial(0.5, 1.0)], 0.1, measure([0.5]))
    assert found.flags == (False,)
    assert found.error == 0.0
    assert choose([], 0.1, measure([])).flags == ()


def test_an_infinite_error_is_never_chosen() -> None:
    harms = [math.inf, 0.01]
    found = choose([Trial(harm, 1.0) for harm in harms], 0.1, measure(harms))
    assert found.flags == (False, True)


def test_products_are_returned_in_order() -> None:
    harms = [0.01, 0.03, 0.02]
    found = choose([Trial(harm, 1.0) for harm in harms], 1.0, measure(harms))
    assert without_next(found, 1).flags == (True, False, True)
    assert without_next(found, 2).flags == (True, False, False)
    assert without_next(found, 9).flags == (False, False, False)

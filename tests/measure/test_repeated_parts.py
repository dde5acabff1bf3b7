"""Measurements are repeated until two agree, and only those of which no two do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ortkit.measure.agreement import (
    MOST_MEASUREMENTS,
    MOST_REPETITIONS,
    USUAL_MEASUREMENTS,
    Agreed,
    agreed,
    medians,
    middle,
    repeated,
)


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([], None),
        ([[1.0]], None),
        ([[9.0], [-1.0], [0.0], [-4.0]], None),
        ([[2.0], [2.0]], Agreed((2.0,), 0.0)),
        ([[9.0], [-1.0], [4.0], [4.0]], Agreed((4.0,), 0.0)),
        ([[9.0], [1.0], [2.0], [4.0]], Agreed((1.5,), 0.5)),
        # The number that differs most counts.
        ([[1.0, 8.0], [1.0, 4.0], [1.5, 8.0]], Agreed((1.25, 8.0), 1 / 3)),
    ],
)
def test_the_two_that_agree_best(results: list[list[float]], found: Agreed | None) -> None:
    assert agreed(results) == found


def test_a_part_of_which_two_agree_is_not_measured_again() -> None:
    left = {"a": [1.0, 1.0], "b": [1.0, 9.0, 1.05], "c": [1.0, 2.0, 4.0, 8.0]}
    asked: list[list[str]] = []

    def measure(parts: Sequence[str]) -> dict[str, list[float]]:
        asked.append([*parts])
        return {name: [left[name].pop(0)] for name in parts}

    found = repeated(["a", "b", "c"], measure, 0.1)
    assert asked == [["a", "b", "c"], ["a", "b", "c"], ["b", "c"], ["c"]]
    assert len(asked) == MOST_REPETITIONS
    assert found["a"] == Agreed((1.0,), 0.0)
    assert found["b"] == Agreed((1.025,), pytest.approx(0.05 / 1.05))  # type: ignore[arg-type]
    assert found["c"] == Agreed((1.5,), 0.5)


def test_what_cannot_be_measured_is_tried_once() -> None:
    asked: list[list[str]] = []

    def measure(parts: Sequence[str]) -> dict[str, list[float]]:
        asked.append([*parts])
        return {}

    assert repeated(["a"], measure, 0.1) == {"a": None}
    assert asked == [["a"]]
    assert repeated([], measure, 0.1) == {}


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([[1.0], [2.0], [-1.0]], None),
        # Two of disturbed processes agree.
        ([[1.7], [1.71], [1.1], [1.2], [1.0]], Agreed((1.2,), 0.3 / 1.2)),
        ([[1.0, 4.0], [2.0, 4.0], [3.0, 4.0]], Agreed((2.0, 4.0), 0.25)),
    ],
)
def test_the_median(results: list[list[float]], found: Agreed | None) -> None:
    have = middle(results)
    assert (have is None) == (found is None)
    if have is not None and found is not None:
        assert have.values == found.values
        assert have.noise == pytest.approx(found.noise)


def test_parts_that_are_doubtful_are_measured_more() -> None:
    asked: list[list[str]] = []

    def measure(parts: Sequence[str]) -> dict[str, list[float]]:
        asked.append([*parts])
        return {"a": [1.0], "b": [2.0 + len(asked)], "c": [-1.0]}

    found = medians(["a", "b", "c"], measure, lambda one: one.noise > 0)
    assert asked[:USUAL_MEASUREMENTS] == [["a", "b", "c"]] * USUAL_MEASUREMENTS
    assert asked[USUAL_MEASUREMENTS:] == [["b", "c"]] * (MOST_MEASUREMENTS - USUAL_MEASUREMENTS)
    assert found["a"] == Agreed((1.0,), 0.0)
    assert found["b"] is not None
    assert found["b"].values == (7.0,)
    assert found["c"] is None
    assert medians(["a"], lambda _: {}, lambda _: True) == {"a": None}

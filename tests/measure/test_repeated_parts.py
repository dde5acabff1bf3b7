"""Measurements are repeated until two agree, and only those of which no two do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ortkit.measure.agreement import MOST_REPETITIONS, Agreed, agreed, repeated


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

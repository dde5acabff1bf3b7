"""How far outputs are off: norms, the worst row, what is no number."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from ortkit.verify.accuracy import largest_error, measure, worst


def test_the_error_is_the_norm_of_the_difference_over_the_norm() -> None:
    want = np.full((4, 16), 2.0, np.float32)
    got = want.copy()
    got[:, 0] = 2.2
    found = measure("y", want, got)
    assert found is not None
    assert found.relative_error == pytest.approx(0.2 / (2 * 4), rel=1e-5)
    assert found.error == found.relative_error
    assert found.cosine == pytest.approx(1.0, abs=1e-3)


def test_one_bad_row_of_many_counts_for_an_eighth() -> None:
    want = np.ones((1000, 16), np.float32)
    got = want.copy()
    got[7] = 2.0
    found = measure("y", want, got)
    assert found is not None
    assert found.relative_error == pytest.approx(1000**-0.5, rel=1e-5)
    assert found.worst_row == pytest.approx(1.0)
    assert found.error == pytest.approx(1 / 8)


def test_small_rows_are_judged_at_a_quarter_of_the_usual_size() -> None:
    want = np.ones((4, 16), np.float32)
    want[0] = 1e-6
    got = want.copy()
    got[0] = 2e-6
    found = measure("y", want, got)
    assert found is not None
    assert found.worst_row < 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_became_none_is_an_infinite_error(bad: float) -> None:
    want = np.ones((2, 8), np.float32)
    got = want.copy()
    got[1, 1] = bad
    found = measure("y", want, got)
    assert found is not None
    assert found.error == math.inf
    assert found.to_json()["error"] is None


def test_masks_do_not_hide_the_rest() -> None:
    want = np.ones((2, 8), np.float32)
    want[:, 0] = -3.4e38
    got = want.copy()
    got[:, 1] = 1.5
    found = measure("y", want, got)
    assert found is not None
    assert found.relative_error == pytest.approx(0.5 / 7**0.5, rel=1e-5)


def test_the_largest_element_of_scores() -> None:
    want = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    got = np.array([[1, 2, 3], [2, 3, 1]], np.float32)
    found = measure("y", want, got)
    assert found is not None
    assert found.top1 == 0.5
    assert measure("y", want.reshape(6), got.reshape(6)).top1 is None  # type: ignore[union-attr]


def test_other_types_and_shapes() -> None:
    assert measure("y", np.ones(3, np.int64), np.zeros(3, np.int64)) is None
    assert measure("y", [np.ones(3)], [np.ones(3)]) is None
    half = np.ones((2, 8), ml_dtypes.bfloat16)
    found = measure("y", half, half)
    assert found is not None
    assert found.error == 0.0
    other = measure("y", np.ones((2, 8)), np.ones((2, 9)))
    assert other is not None
    assert other.error == math.inf


def test_the_worst_over_input_sets() -> None:
    want = np.ones((2, 8), np.float32)
    turned = want.copy()
    turned[:, :4] = -2.0
    three = [measure("y", want, each) for each in (want, 1.5 * want, turned)]
    found = worst(item for item in three if item is not None)
    assert found.error == found.relative_error == pytest.approx(1.5 * 2**0.5)
    assert found.cosine == pytest.approx(-4 / (8 * 20) ** 0.5)
    assert largest_error([found]) == found.error
    assert largest_error([]) == 0.0

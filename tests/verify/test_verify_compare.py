"""compare_outputs: what counts as equal, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ortkit
from ortkit.verify.compare import compare_outputs, is_telling, worse
from ortkit.verify.rows import row_errors
from ortkit.verify.tolerances import TOLERANCES

EPS = 2.0**-23


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_the_same_array_is_equal() -> None:
    found = compare_outputs("y", rows(3, 40), rows(3, 40))
    assert (found.equal, found.max_error_eps, found.reason) == (True, 0.0, "")


def test_one_wrong_element_is_found_in_a_large_tensor() -> None:
    expected = rows(200, 100)
    actual = expected.copy()
    actual[123, 45] += np.abs(expected[123]).max() * 1000 * EPS
    found = compare_outputs("y", expected, actual)
    assert not found.equal
    assert found.worst_row == (123,)
    assert found.max_error_eps == pytest.approx(1000, rel=0.01)
    assert "1000 epsilons of float32 in row [123], 128 are allowed" in found.reason


def test_a_small_row_is_judged_by_its_own_scale() -> None:
    expected = rows(4, 64)
    expected[2] *= 0.01
    actual = expected.copy()
    actual[2] *= 1 + 1e-3
    assert compare_outputs("y", expected, actual).worst_row == (2,)


def test_a_small_element_is_judged_by_the_scale_of_its_row() -> None:
    expected = rows(1, 64)
    expected[0, 3] = 1e-12
    actual = expected.copy()
    actual[0, 3] = 1e-9
    assert compare_outputs("y", expected, actual).equal


def test_a_last_axis_of_one_does_not_make_each_element_a_row() -> None:
    expected = rows(4, 16, 1)
    expected[1, 2, 0] = 1e-12
    actual = expected.copy()
    actual[1, 2, 0] = 1e-9
    assert compare_outputs("y", expected, actual).equal


def test_a_sentinel_does_not_hide_the_error_of_its_neighbours() -> None:
    expected = rows(2, 64)
    expected[0, :8] = -1e9
    actual = expected.copy()
    actual[0, 20] += 1e-2
    assert not compare_outputs("y", expected, actual).equal
    actual = expected.copy()
    actual[0, 0] = -2e9
    assert not compare_outputs("y", expected, actual).equal


@pytest.mark.parametrize("near", [5, 4, 3])
def test_what_is_a_sentinel_is_told_by_the_median(near: int) -> None:
    """With fewer than half of a row near its largest the median is small, and it is a sentinel."""
    want = np.where(np.arange(8) < near, 1e6, 1.0).astype(np.float32)[None]
    errors, _ = row_errors(want, want + np.where(np.arange(8) == 7, 1e-3, 0.0))
    assert (errors[0] > 1e-4) == (near < 4)


def test_a_row_of_sentinels_does_not_hide_the_error_of_other_rows() -> None:
    expected = rows(5, 64)
    expected[0] = -1e9
    actual = expected.copy()
    actual[3, 20] += 1e-2
    assert not compare_outputs("y", expected, actual).equal


def test_nan_equals_nan_and_infinities_must_agree() -> None:
    expected = rows(3, 16)
    expected[0, 0], expected[1, 1] = np.nan, np.inf
    assert compare_outputs("y", expected, expected.copy()).equal
    for index, value in (((0, 0), 1.0), ((1, 1), -np.inf), ((1, 1), 1.0), ((2, 2), np.nan)):
        actual = expected.copy()
        actual[index] = value
        found = compare_outputs("y", expected, actual)
        assert not found.equal
        assert found.worst_row == (index[0],)
        assert "NaN or infinity" in found.reason


def test_shapes_and_types_must_agree() -> None:
    assert "shape [16] instead of [1, 16]" in compare_outputs("y", rows(1, 16), rows(16)).reason
    wide = rows(1, 16).astype(np.float64)
    assert "type float64 instead of float32" in compare_outputs("y", rows(1, 16), wide).reason


def test_empty_and_scalar_outputs() -> None:
    assert compare_outputs("y", rows(0, 4), rows(0, 4)).equal
    one = np.array(1.0, np.float32)
    assert compare_outputs("y", one, one).equal
    assert not compare_outputs("y", one, one + np.float32(1e-3)).equal


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "float8_e4m3fn"])
def test_every_float_type_has_its_own_epsilon(dtype: str) -> None:
    kind = np.dtype(dtype if dtype in ("float16", "float64") else getattr(ml_dtypes, dtype))
    row = TOLERANCES[dtype]
    expected = np.ones((2, 16), kind)
    steps = row.allowed_eps + 1
    good, bad = expected.copy(), expected.copy()
    good[1, 3] = kind.type(1 + row.epsilon)
    bad[1, 3] = kind.type(1 + 2 * steps * row.epsilon)
    assert compare_outputs("y", expected, good).equal
    assert not compare_outputs("y", expected, bad).equal


def test_integers_booleans_and_strings_must_be_the_same() -> None:
    for expected in (np.arange(6), np.arange(6) % 2 == 0, np.array(["a", "b"], object)):
        actual = expected.copy()
        actual[1] = actual[0]
        assert compare_outputs("y", expected, expected.copy()).equal
        found = compare_outputs("y", expected, actual)
        assert not found.equal
        assert f"1 of {expected.size} elements differ, first at [1]" in found.reason


def test_near_ties_are_counted_and_pass() -> None:
    expected, actual = np.array([0, 1, 2, 3]), np.array([0, 9, 2, 3])
    found = compare_outputs("y", expected, actual, tie=lambda other: other == 9)
    assert (found.equal, found.near_ties) == (True, 1)
    actual[3] = 8
    found = compare_outputs("y", expected, actual, tie=lambda other: other == 9)
    assert (found.equal, found.near_ties) == (False, 1)
    assert "first at [3]: 8 instead of 3" in found.reason


def test_complex_parts_are_compared_apart() -> None:
    expected = (rows(2, 16) + 1j * rows(2, 16)).astype(np.complex64)
    assert compare_outputs("y", expected, expected.copy()).equal
    assert not compare_outputs("y", expected, expected + np.complex64(1e-2j)).equal


def test_sequences_and_absent_values() -> None:
    good, bad = [rows(2, 8), rows(3, 8)], [rows(2, 8), rows(3, 8) + 1]
    assert compare_outputs("y", good, [part.copy() for part in good]).equal
    assert "part 1: " in compare_outputs("y", good, bad).reason
    assert "a sequence of 1 instead of 2" in compare_outputs("y", good, good[:1]).reason
    assert compare_outputs("y", None, None).equal
    assert not compare_outputs("y", rows(2, 8), None).equal


def test_worse_keeps_the_failure_and_adds_the_ties() -> None:
    good = compare_outputs("y", np.array([0]), np.array([1]), tie=lambda other: other == 1)
    bad = compare_outputs("y", np.array([0]), np.array([2]))
    for found in (worse(good, bad), worse(bad, good)):
        assert (found.equal, found.near_ties) == (False, 1)


def test_json_has_no_infinity() -> None:
    found = compare_outputs("y", rows(2, 8), rows(3, 8))
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["max_error_eps"] is None


def test_what_can_be_compared() -> None:
    assert is_telling(rows(2, 2))
    assert not is_telling(np.full((2, 2), np.nan, np.float32))
    assert not is_telling(np.zeros((0, 4), np.int64))


def test_no_tolerance_stands_anywhere_else() -> None:
    paths = sorted(Path(ortkit.__file__).parent.rglob("*.py"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert "assert_allclose" not in text and "np.allclose" not in text, path

"""What is said to be in a tensor, and how far two are apart, against numpy's own."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from ortkit.comparison import values
from ortkit.comparison.values import distance, statistics


@pytest.fixture(params=[1 << 20, 7], ids=["one block", "many blocks"], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_BLOCK", request.param)


def numbers(seed: int, shape: tuple[int, ...] = (3, 5, 7)) -> np.ndarray:
    return np.random.default_rng(seed).normal(100, 2, shape).astype(np.float32)


def test_statistics_are_numpys() -> None:
    array = numbers(0)
    found = statistics(array)
    wide = array.astype(np.float64)
    assert (found.type, found.shape, found.elements) == ("float32", (3, 5, 7), 105)
    assert (found.nan, found.infinite) == (0, 0)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.mean == pytest.approx(wide.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(wide.std(), rel=1e-9)
    assert found.median == pytest.approx(np.median(wide))
    assert found.magnitude == pytest.approx(np.abs(wide).mean(), rel=1e-12)
    assert found.minimum_at == np.unravel_index(wide.argmin(), wide.shape)
    assert found.maximum_at == np.unravel_index(wide.argmax(), wide.shape)
    parts = np.quantile(wide, (0.9, 0.95, 0.99))
    assert (found.p90, found.p95, found.p99) == pytest.approx(tuple(parts), rel=1e-6)
    counts, bounds = np.histogram(wide, 10)
    assert found.histogram_counts == tuple(counts)
    assert found.histogram_bounds == pytest.approx(tuple(bounds))


def test_a_small_spread_far_from_zero_is_not_lost() -> None:
    array = 1e9 + np.arange(40, dtype=np.float64)
    assert statistics(array).deviation == pytest.approx(np.arange(40).std(), rel=1e-9)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    array = np.float32([np.nan, 1, np.inf, 3, -np.inf, np.nan, 2, 2])
    found = statistics(array)
    assert (found.nan, found.infinite) == (2, 2)
    assert (found.minimum, found.maximum, found.mean, found.median) == (1, 3, 2, 2)
    nothing = statistics(np.float32([np.nan, np.inf]))
    assert (nothing.nan, nothing.infinite, nothing.minimum) == (1, 1, None)
    json.dumps(nothing.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(-4, 5, dtype=np.int64),
        np.asarray([True, False, True]),
        np.asarray([1.5, -2, 3], np.float16),
        np.asarray([1.5, -2, 3], ml_dtypes.bfloat16),
        np.asarray(4.0, np.float64),
        np.asarray([250, 3], np.uint8),
    ],
    ids=lambda array: array.dtype.name,
)
def test_every_type_has_statistics(array: np.ndarray) -> None:
    found = statistics(array)
    wide = array.astype(np.float64)
    assert found.type == array.dtype.name
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.median == pytest.approx(np.median(wide))


def test_texts_and_nothing_have_no_numbers() -> None:
    assert statistics(np.asarray(["a", "b"], object)).type == "string"
    empty = statistics(np.zeros((0, 4), np.float32))
    assert (empty.elements, empty.minimum) == (0, None)
    assert distance(np.zeros((0, 4)), np.zeros((0, 4))) is None
    assert distance(np.asarray(["a"], object), np.asarray(["a"], object)) is None


def test_distances_are_numpys() -> None:
    want, got = numbers(0), numbers(1)
    want[1, 2, 3] = 0
    found = distance(want, got)
    assert found is not None
    a, b = want.astype(np.float64), got.astype(np.float64)
    apart = np.abs(a - b)
    some = a != 0
    ratio = np.where(some, apart / np.where(some, np.abs(a), 1), np.nan)
    assert found.absolute == statistics(apart)
    assert found.relative == statistics(ratio)
    assert found.relative.nan == 1
    assert found.norm == pytest.approx(np.linalg.norm(a - b))
    cosine = a.ravel() @ b.ravel() / np.linalg.norm(a) / np.linalg.norm(b)
    assert found.cosine == pytest.approx(cosine, abs=1e-12)
    ratio = np.square(a).mean() / np.square(a - b).mean()
    assert found.signal_to_noise_db == pytest.approx(10 * np.log10(ratio))
    peak = np.abs(a).max() ** 2 / np.square(a - b).mean()
    assert found.peak_signal_to_noise_db == pytest.approx(10 * np.log10(peak))
    assert found.unequal == (a != b).sum()


def test_equal_tensors_are_no_distance_apart() -> None:
    array = np.float32([1, np.nan, np.inf, -np.inf, 0])
    found = distance(array, array.copy())
    assert found is not None
    assert (found.absolute.maximum, found.unequal, found.not_finite) == (0, 0, 0)
    assert found.cosine == 1
    assert found.signal_to_noise_db is None
    json.dumps(found.to_json(), allow_nan=False)


def test_what_is_finite_in_one_only_is_counted() -> None:
    want = np.float32([1, np.nan, np.inf, 4, np.inf, np.nan])
    got = np.float32([1.5, 2, -np.inf, np.nan, np.inf, np.nan])
    found = distance(want, got)
    assert found is not None
    assert found.not_finite == 3
    assert found.unequal == 4
    assert (found.absolute.maximum, found.absolute.maximum_at) == (0.5, (0,))
    assert distance(np.float32([np.nan]), np.float32([1])) is None


def test_zeros_have_no_relative_distance_and_no_angle() -> None:
    found = distance(np.zeros(9, np.float32), np.ones(9, np.float32))
    assert found is not None
    assert (found.relative, found.cosine, found.signal_to_noise_db) == (None, None, None)
    assert found.absolute.maximum == 1


def test_large_values_do_not_overflow() -> None:
    want, got = np.float32([3e38, 1]), np.float32([-3e38, 1])
    found = distance(want, got)
    assert found is not None
    assert found.absolute.maximum == pytest.approx(6e38)
    json.dumps(found.to_json(), allow_nan=False)


def test_complex_numbers_are_pairs() -> None:
    want = np.asarray([1 + 2j, 3 + 4j], np.complex64)
    found = distance(want, want + np.asarray([0, 1j], np.complex64))
    assert found is not None
    assert (found.absolute.maximum, found.absolute.maximum_at, found.unequal) == (1, (1, 1), 1)
    assert statistics(want).maximum == 5

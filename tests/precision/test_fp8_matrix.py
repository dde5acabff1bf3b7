"""Matrices in fp8: the same numbers as a cast, of any layout, and their error."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ortkit.precision import fp8_matrix
from ortkit.precision.fp8_matrix import LARGEST, quantize_fp8

FP8 = ml_dtypes.float8_e4m3fn


def test_a_matrix_in_eights() -> None:
    rng = np.random.default_rng(1)
    matrix = (rng.standard_normal((40, 24)) * np.logspace(-3, 3, 24)).astype(np.float16)
    matrix[:, 5] = 0
    made = quantize_fp8(matrix)
    numbers, factors = made.numbers, made.factors
    assert numbers.shape == (24, 40)
    assert factors.shape == (24,)
    assert np.array_equal(factors.astype(np.float16), factors)
    wide = numbers.astype(np.float32) * factors[:, None]
    assert not wide[5].any()
    # Each number is rounded to 4 bits, those next to 0 to the smallest step there is.
    bound = np.maximum(np.abs(matrix.T.astype(np.float32)) / 16, factors[:, None] * 2**-9)
    assert (np.abs(wide - matrix.T) <= 1.01 * bound).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape", [(1, 1), (16, 1), (1, 33), (17, 65), (300, 130), (130, 300)])
@pytest.mark.parametrize("layout", ["C", "F", "parts"])
def test_any_matrix_is_what_a_cast_makes_of_it(
    shape: tuple[int, int], layout: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8_matrix, "_PART", 4096)
    rng = np.random.default_rng(shape[0])
    matrix = rng.standard_normal(shape) * np.exp2(rng.integers(-14, 6, shape))
    matrix = np.asarray(matrix.astype(dtype), order="F" if layout == "F" else "C")
    if layout == "parts":
        matrix = np.repeat(np.repeat(matrix, 2, axis=0), 3, axis=1)[::2, ::3]
    made = quantize_fp8(matrix)
    wide = matrix.T.astype(np.float32)
    least = np.finfo(np.float16).tiny
    want = np.maximum(np.abs(wide).max(axis=1) / np.float32(LARGEST), least).astype(np.float16)
    assert np.array_equal(made.factors, want)
    by = made.factors[:, None]
    cast = np.clip(wide / by, -LARGEST, LARGEST).astype(FP8)
    assert np.array_equal(made.numbers.view(np.uint8), cast.view(np.uint8))
    off = cast.astype(np.float64) * by - wide
    error = np.linalg.norm(off) / np.linalg.norm(wide.astype(np.float64))
    assert made.error == pytest.approx(error, rel=1e-5, abs=1e-9)


def test_numbers_between_two_of_fp8_are_rounded_as_a_cast_does() -> None:
    """Halves between neighbours, and what is next to these in float32."""
    known = np.arange(256, dtype=np.uint8).view(FP8).astype(np.float32)
    known = np.unique(known[np.isfinite(known)])
    halves = (known[1:] + known[:-1]) / 2
    near = [np.nextafter(halves, np.float32(to)) for to in (-np.inf, np.inf)]
    # The largest makes the factor of the column 1.
    column = np.concatenate([known, halves, *near])[:, None]
    made = quantize_fp8(column)
    assert made.factors == 1.0
    assert np.array_equal(made.numbers[0].view(np.uint8), column[:, 0].astype(FP8).view(np.uint8))


def test_nothing_has_no_error() -> None:
    made = quantize_fp8(np.zeros((16, 32), np.float16))
    assert made.error == 0.0
    assert not made.numbers.astype(np.float32).any()

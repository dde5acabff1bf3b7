"""Weights as integers, and that ONNX Runtime reads them as they were meant."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.precision.weight_quantization import by_blocks, by_channel, by_column
from tests.precision.helpers import floats


@pytest.mark.parametrize("bits", [7, 8])
def test_columns_have_scales_of_their_own(bits: int) -> None:
    weight = floats(64, 5) * np.float32([1, 10, 100, 1e-3, 0])
    numbers, scales = by_column(weight, bits)
    assert numbers.dtype == np.int8
    assert np.abs(numbers).max() == 2 ** (bits - 1) - 1
    assert (np.abs(numbers * scales - weight) <= scales * 0.501).all()
    assert (numbers[:, 4] == 0).all()


def test_channels_are_columns_of_convolutions() -> None:
    weight = floats(6, 3, 3, 3)
    numbers, scales = by_channel(weight)
    again, other = by_column(weight.reshape(6, -1).T)
    np.testing.assert_array_equal(numbers.reshape(6, -1), again.T)
    np.testing.assert_array_equal(scales, other)


def unpacked(packed: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    low, high = packed & 15, packed >> 4
    numbers = np.stack([low, high], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32) - 8
    return (numbers * scales[..., None]).reshape(packed.shape[0], -1)[:, :rows].T


@pytest.mark.parametrize(("rows", "block"), [(64, 32), (70, 32), (16, 128)])
def test_blocks_lose_no_more_than_half_a_step_of_the_range(rows: int, block: int) -> None:
    weight = floats(rows, 7)
    found = by_blocks(weight, block)
    count = -(-rows // block)
    assert found.packed.shape == (7, count, block // 2)
    back = unpacked(found.packed, found.scales, rows)
    error = np.linalg.norm(back - weight) / np.linalg.norm(weight)
    plain = np.abs(weight).max() / 8 / np.sqrt(12) / weight.std()
    assert error < plain


def test_a_column_of_zeros_stays_zero() -> None:
    weight = floats(32, 3)
    weight[:, 1] = 0
    found = by_blocks(weight, 32)
    assert (unpacked(found.packed, found.scales, 32)[:, 1] == 0).all()

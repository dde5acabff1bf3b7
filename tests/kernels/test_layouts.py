"""Matrices in panels of columns: which widths, and that unpacking gives the matrix again."""

from __future__ import annotations

import numpy as np
import pytest

from ortkit.kernels.layouts.fp32_panels import layout


@pytest.mark.parametrize(
    ("depth", "columns", "width"),
    [
        (768, 768, 48), (768, 512, 64), (512, 2048, 64), (1023, 512, 64), (1025, 512, 48),
        (4096, 1024, 48), (3072, 768, 48), (1024, 2816, 48),
        # Panels of 48 would pad these by more than a sixteenth.
        (1280, 64, 64), (1280, 128, 64), (1280, 256, 64), (2048, 32, 32),
        # By no more than an eighth, where K is a multiple of 1,024.
        (2048, 64, 64), (2048, 128, 48), (2048, 256, 48), (1024, 256, 48),
    ],
)  # fmt: skip
def test_widths(depth: int, columns: int, width: int) -> None:
    made = layout(depth, columns)
    assert made.shape[1:] == (depth, width)
    assert made.shape[0] == -(-columns // width)


@pytest.mark.parametrize(("depth", "columns"), [(2048, 512), (2048, 500), (5, 100), (64, 48)])
def test_unpacked_is_the_matrix(depth: int, columns: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((depth, columns), np.float32)
    made = layout(depth, columns)
    packed = made.pack(matrix)
    assert packed.shape == made.shape
    whole = packed.transpose(made.perm).reshape(made.whole)
    np.testing.assert_array_equal(whole[:, :columns], matrix)
    assert not whole[:, columns:].any()

"""Convolutions of images whose sizes are known only at run time, and differ from run to run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conv_regions import feeds, full, pointwise
from fused_model import fused_model, session

from ortkit.kernels.build.library import LibraryBuild

Build = Callable[..., LibraryBuild]
PADS = (1, 1, 1, 1)
#: Batch, height and width: few pixels, few tiles and many; again few.
SIZES = (
    (1, 1, 1), (1, 2, 2), (1, 1, 9), (3, 1, 2), (1, 4, 4), (2, 5, 3), (1, 6, 6), (1, 7, 7),
    (1, 8, 5), (4, 3, 3), (1, 10, 10), (1, 13, 12), (2, 16, 17), (9, 4, 4), (1, 61, 50),
    (40, 2, 2), (1, 4, 40), (0, 4, 4), (1, 3, 3),
)  # fmt: skip


def convolved(inputs: dict[str, np.ndarray], pads: tuple[int, int, int, int]) -> np.ndarray:
    """The region in float64: weights [V, 9 C, 16], silu of the sum and the residual."""
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    vectors, depth = w.shape[0], x.shape[-1]
    taps = w.reshape(vectors, depth, 3, 3, 16).transpose(2, 3, 1, 0, 4).reshape(3, 3, depth, -1)
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    height, width = x.shape[1:3]
    total = inputs["b"] + sum(
        padded[:, i : i + height, j : j + width] @ taps[i, j] for i in range(3) for j in range(3)
    )
    total = total + inputs["r"]
    return np.asarray(total / (1 + np.exp(-total)))


@pytest.mark.parametrize(
    ("channels", "pads"),
    [((32, 80), PADS), ((16, 16), (2, 0, 0, 2)), ((48, 48), (0, 2, 2, 0))],
)
def test_sizes_may_change_between_runs_of_a_session(
    channels: tuple[int, int], pads: tuple[int, int, int, int], build: Build
) -> None:
    signature = full(("n", "h", "w"), channels, 3, 1, pads, residual=True, minimal=True)
    library = build(signature).library
    assert library is not None
    model = fused_model(signature)
    alone, shared = (session(model, library.path, threads) for threads in (1, 2))
    for batch, height, width in SIZES:
        inputs = feeds(signature, {"n": batch, "h": height, "w": width})
        expected = convolved(inputs, pads)
        found = alone.run(None, inputs)[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{height, width}")
        assert np.array_equal(found, shared.run(None, inputs)[0])


@pytest.mark.parametrize("channels", [(20, 33), (64, 96)])
def test_1x1_convolutions_take_any_size(channels: tuple[int, int], build: Build) -> None:
    signature = pointwise(("n", "h", "w"), channels, "silu", gate=True, residual=True)
    library = build(signature).library
    assert library is not None
    model = fused_model(signature)
    alone, shared = (session(model, library.path, threads) for threads in (1, 2))
    for batch, height, width in SIZES:
        inputs = feeds(signature, {"n": batch, "h": height, "w": width})
        x, gate, weight = (inputs[name].astype(np.float64) for name in ("x", "g", "w"))
        matrix = weight.transpose(1, 0, 2).reshape(channels[0], -1)[:, : channels[1]]
        total = (x * gate) @ matrix + inputs["b"] + inputs["r"]
        found = alone.run(None, inputs)[0]
        expected = total / (1 + np.exp(-total))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{height, width}")
        assert np.array_equal(found, shared.run(None, inputs)[0])

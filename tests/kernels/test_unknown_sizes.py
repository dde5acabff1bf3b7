"""Convolutions of images whose sizes are known only at run time, and differ from run to run."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from conv_regions import feeds, full, pointwise
from fused_model import fused_model, session
from ortkit.custom_ops.tvm.conv import any_size, winograd
from ortkit.custom_ops.tvm.tile.program import PICOSECONDS_PER_MULTIPLY, UnitKernel

from ortkit.kernels.build.library import LibraryBuild

Build = Callable[..., LibraryBuild]
PADS = (1, 1, 1, 1)
#: Batch, height and width: few pixels, few tiles and many; again few.
SIZES = (
    (1, 1, 1), (1, 2, 2), (1, 1, 9), (3, 1, 2), (1, 4, 4), (2, 5, 3), (1, 6, 6), (1, 7, 7),
    (1, 8, 5), (4, 3, 3), (1, 10, 10), (1, 13, 12), (2, 16, 17), (9, 4, 4), (1, 61, 50),
    (40, 2, 2), (1, 4, 40), (0, 4, 4), (1, 3, 3),
)  # fmt: skip


#: Channels, filter, stride, pads and dilation.
WINDOWS: dict[str, tuple[tuple[int, int], int, int, tuple[int, int, int, int], int]] = {
    "strided": ((48, 64), 3, 2, PADS, 1),
    "5x5, odd channels": ((20, 33), 5, 1, (2, 2, 2, 2), 1),
    "even filter, pads on some sides": ((16, 24), 4, 2, (1, 2, 0, 3), 1),
    "dilated, stride over the filter": ((8, 100), 2, 3, (1, 0, 2, 1), 2),
    "one tap": ((130, 16), 1, 2, (0, 0, 0, 0), 1),
    "pads over the filter": ((144, 80), 3, 1, (4, 0, 1, 5), 1),
    "largest filter": ((3, 16), 11, 1, (5, 5, 5, 5), 1),
}


def convolved(
    inputs: dict[str, np.ndarray],
    kernel: int,
    pads: tuple[int, int, int, int],
    stride: int = 1,
    dilation: int = 1,
) -> np.ndarray:
    """The region in float64: weights [V, taps, C, 16], silu of the sum and the residual."""
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    result = inputs["b"] + inputs["r"].astype(np.float64)
    taps = w.transpose(1, 2, 0, 3).reshape(kernel, kernel, x.shape[-1], -1)
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows, columns = (stride * (side - 1) + 1 for side in result.shape[1:3])
    for i, j in np.ndindex(kernel, kernel):
        y, z = i * dilation, j * dilation
        read = padded[:, y : y + rows : stride, z : z + columns : stride]
        result = result + (read @ taps[i, j])[..., : result.shape[-1]]
    return np.asarray(result / (1 + np.exp(-result)))


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
        expected = convolved(inputs, 3, pads)
        found = alone.run(None, inputs)[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{height, width}")
        assert np.array_equal(found, shared.run(None, inputs)[0])


@pytest.mark.parametrize("case", WINDOWS)
def test_any_window_takes_any_size(case: str, build: Build) -> None:
    channels, kernel, stride, pads, dilation = WINDOWS[case]
    signature = full(
        ("n", "h", "w"), channels, kernel, stride, pads, residual=True, dilation=dilation,
        sides=("oh", "ow"),
    )  # fmt: skip
    library = build(signature).library
    assert library is not None
    model = fused_model(signature)
    alone, shared = (session(model, library.path, threads) for threads in (1, 2))
    reach = dilation * (kernel - 1) + 1
    for batch, height, width in (*SIZES, (2, 0, 3)):
        oh, ow = (
            (side + low + high - reach) // stride + 1
            for side, low, high in zip((height, width), pads[:2], pads[2:], strict=True)
        )
        if oh < 1 or ow < 1:
            continue
        sizes = {"n": batch, "h": height, "w": width, "oh": oh, "ow": ow}
        inputs = feeds(signature, sizes)
        expected = convolved(inputs, kernel, pads, stride, dilation)
        found = alone.run(None, inputs)[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=f"{height, width}")
        assert np.array_equal(found, shared.run(None, inputs)[0])


@pytest.mark.parametrize("minimal", [False, True])
@pytest.mark.parametrize("side", [1, 4, 56])
def test_units_cost_what_their_pixels_do(side: int, minimal: bool) -> None:
    """Of one pixel there is one task for all units, of many there are some for each thread."""
    signature = full(("n", "h", "w"), (32, 64), 3, activation="", minimal=minimal)
    kernel = (winograd if minimal else any_size).match(signature)
    assert isinstance(kernel, UnitKernel)
    launch = kernel.launch("x86-64-v3")
    units = prod(size.at(side) for size in launch.units)
    found = units * launch.points.at(side) * launch.picoseconds_per_point
    assert 500 < launch.shared_nanoseconds < 32 * 64 * 9  # weights at 4 to 150 GB/s
    multiplies = side**3 * 32 * 64 * 9
    assert found == pytest.approx(multiplies * PICOSECONDS_PER_MULTIPLY, rel=0.02)


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

"""Convolution kernels of random sizes against their bodies, which ONNX Runtime computes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from conv_regions import (
    ACTIVATIONS,
    depthwise,
    expand_depthwise,
    feeds,
    pointwise,
    squeeze_excite,
    stem,
)
from fused_model import fused_model, session

from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.signature import RegionSignature

Build = Callable[..., LibraryBuild]
CHANNELS = (1, 3, 8, 16, 17, 24, 31, 48, 64, 100)
SEEDS = 20


def _window(rng: random.Random, height: int, width: int) -> tuple[int, tuple[int, int, int, int]]:
    """A filter and pads that fit at least once."""
    while True:
        kernel = rng.choice([1, 2, 3, 5, 7])
        top, left, bottom, right = (rng.randint(0, kernel) for _ in range(4))
        if height + top + bottom >= kernel and width + left + right >= kernel:
            return kernel, (top, left, bottom, right)


def random_region(rng: random.Random) -> tuple[RegionSignature, dict[str, int]]:
    sizes = {"n": rng.randint(1, 4), "h": rng.randint(1, 12), "w": rng.randint(1, 40)}
    batch = rng.choice([1, 2, 3, "n"])
    height, width = rng.randint(1, 24), rng.randint(1, 40)
    channels, after = rng.choice(CHANNELS), max(2, rng.choice(CHANNELS))
    activation = rng.choice(list(ACTIVATIONS))
    kernel, pads = _window(rng, height, width)
    stride, means = rng.choice([1, 1, 2, 3]), rng.random() < 0.5
    match rng.choice(["pointwise", "depthwise", "expand", "stem", "gate"]):
        case "pointwise":
            pixels = rng.choice([(height, width), ("h", width), ("h", "w")])
            gate, residual = rng.random() < 0.3, rng.random() < 0.3
            region = pointwise(
                (batch, *pixels), (channels, after), activation, gate=gate, residual=residual
            )
        case "depthwise":
            region = depthwise(
                (batch, height, width), after, kernel, stride, pads, activation, means=means
            )
        case "expand":
            stride = min(stride, kernel)
            region = expand_depthwise(
                (batch, height, width), (channels, after), kernel, stride, pads, activation,
                means=means,
            )  # fmt: skip
        case "stem":
            planes = (batch, rng.randint(1, 4), height, width)
            region = stem(planes, after, kernel, stride, pads, activation)
        case _:
            region = squeeze_excite(batch, rng.choice(["h", 7]), rng.randint(1, 33), channels)
    return region, sizes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_convolutions_agree_with_their_bodies(seed: int, build: Build) -> None:
    signature, sizes = random_region(random.Random(seed))
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, sizes, seed)
    expected = session(model).run(None, inputs)
    for threads in (1, 2):
        found = session(model, library.path, threads).run(None, inputs)
        for got, want in zip(found, expected, strict=True):
            assert got.shape == want.shape
            bound = 3e-5 * max(1.0, float(np.abs(want).max(initial=0.0)))
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)

"""The functions' stated errors, in units in the last place of float32, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from fused_model import fused_model, session, unary

from ortkit.kernels import LibraryBuild

Array = np.ndarray
Build = Callable[..., LibraryBuild]


def bounded(low: float, high: float, count: int = 200_000) -> Array:
    """Half spread evenly, half by exponent; both signs if `low` is negative."""
    rng = np.random.default_rng(0)
    even = rng.uniform(low, high, count)
    small = (
        high * 2.0 ** rng.uniform(-40, 0, count) * rng.choice([-1, 1] if low < 0 else [1], count)
    )
    return np.concatenate([even, small]).astype(np.float32)


def ulps(found: Array, exact: Array) -> float:
    """The largest error of `found` in spacings of float32 at the exact value."""
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(found.astype(np.float64) - exact) / spacing))


ERF = np.vectorize(math.erf, otypes=[float])
# The bounds are those that ortkit/kernels/tvm/vectormath.py states; seen on AVX2, LLVM 22:
# Exp 0.99, Erf 0.98, Tanh 1.27, Sigmoid 2.07, Log 0.80.
CASES: dict[str, tuple[Callable[[Array], Array], Array, float]] = {
    "Exp": (np.exp, bounded(-87, 88.5), 1.1),
    "Erf": (ERF, bounded(-5, 5), 1.2),
    "Tanh": (np.tanh, bounded(-12, 12), 1.5),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), bounded(-80, 80), 2.6),
    "Log": (np.log, np.concatenate([bounded(0, 4), np.float32(2.0) ** bounded(-120, 120)]), 1.0),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_error_stays_within_the_stated_bound(name: str, build: Build) -> None:
    function, x, bound = CASES[name]
    library = build(unary(name)).library
    assert library is not None
    (found,) = session(fused_model(unary(name)), library.path).run(None, {"X": x})
    assert ulps(found, function(x.astype(np.float64))) <= bound


EDGES: dict[str, dict[float, float]] = {
    "Exp": {0.0: 1.0, -np.inf: 0.0, np.inf: np.inf, 89.0: np.inf, -104.0: 0.0, -103.0: 1.4e-45},
    "Erf": {0.0: 0.0, -np.inf: -1.0, np.inf: 1.0, 1e-37: 1.1283792e-37, -9.0: -1.0},
    "Tanh": {0.0: 0.0, -np.inf: -1.0, np.inf: 1.0, 1e-40: 1e-40, 30.0: 1.0},
    "Sigmoid": {0.0: 0.5, -np.inf: 0.0, np.inf: 1.0, -100.0: 3.783506e-44, 100.0: 1.0},
    "Log": {1.0: 0.0, 0.0: -np.inf, np.inf: np.inf, -1.0: np.nan, 1e-40: -92.1034037},
}


@pytest.mark.parametrize("name", sorted(EDGES))
def test_edges(name: str, build: Build) -> None:
    library = build(unary(name)).library
    assert library is not None
    x = np.float32([*EDGES[name], np.nan])
    (found,) = session(fused_model(unary(name)), library.path).run(None, {"X": x})
    expected = np.float32([*EDGES[name].values(), np.nan])
    np.testing.assert_allclose(found, expected, rtol=2**-22, atol=0)

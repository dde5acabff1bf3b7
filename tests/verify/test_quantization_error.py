"""The error that rounded weights make of a product, and what is more than that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from ortkit.verify.lowered.quantization_error import Excess, excess

DEPTH, WIDTH, ROWS, RUNS = 512, 32, 128, 8
rng = np.random.default_rng(7)
X = rng.standard_normal((ROWS, DEPTH))
#: One channel of 32 is 20 times as large as the others.
W = rng.standard_normal((DEPTH, WIDTH)) * np.where(np.arange(WIDTH) == 5, 20, 1) / 8
BIAS = rng.standard_normal(WIDTH)


@dataclass(frozen=True)
class Rounded:
    """A matrix [K, N] as integers with a scale for each column and block of rows."""

    numbers: np.ndarray
    scales: np.ndarray
    """[blocks, N]"""
    zero: float = 0.0
    bias: np.ndarray = field(default_factory=lambda: BIAS)

    def product(self, moved: np.ndarray | float = 0.0) -> np.ndarray:
        spread = np.repeat(self.scales, DEPTH // len(self.scales), 0)
        found = X @ ((self.numbers + moved - self.zero) * spread) + self.bias
        return found.astype(np.float32)


def rounded(bits: int = 8, blocks: int = 1, clipped: float = 1.0) -> Rounded:
    """Round to nearest; `clipped` is the part of the range that is kept."""
    most = 2 ** (bits - 1) - 1
    parts = np.abs(W).reshape(blocks, -1, WIDTH).max(1)
    scales = clipped * parts / most
    spread = np.repeat(scales, DEPTH // blocks, 0)
    return Rounded(np.clip(np.round(W / spread), -most, most), scales)


def noisy(lowered: Rounded) -> list[np.ndarray]:
    draws = np.random.default_rng(1)
    return [lowered.product(draws.uniform(-0.5, 0.5, W.shape)) for _ in range(RUNS)]


def judged(lowered: Rounded) -> Excess:
    return excess((X @ W + BIAS).astype(np.float32), lowered.product(), noisy(lowered))


def compensated(bits: int) -> Rounded:
    """Choose each row's numbers to make up for what rounding the rows before it cost (GPTQ)."""
    start = rounded(bits)
    most = 2 ** (bits - 1) - 1
    left, numbers = W.copy(), start.numbers.copy()
    inverse = np.linalg.cholesky(np.linalg.inv(X.T @ X + 0.1 * np.eye(DEPTH))).T
    for row in range(DEPTH):
        numbers[row] = np.clip(np.round(left[row] / start.scales[0]), -most, most)
        off = (left[row] - numbers[row] * start.scales[0]) / inverse[row, row]
        left[row:] -= np.outer(inverse[row, row:], off)
    return replace(start, numbers=numbers)


@pytest.mark.parametrize(
    ("way", "choice"),
    [(rounded, {"bits": 8}), (rounded, {"bits": 7}), (rounded, {"bits": 4}),
     (rounded, {"bits": 8, "blocks": 16}), (rounded, {"bits": 4, "blocks": 16}),
     (rounded, {"bits": 4, "clipped": 0.9}), (compensated, {"bits": 8}),
     (compensated, {"bits": 4})],
    ids=["8", "7", "4", "8 in blocks", "4 in blocks", "4 clipped", "8 compensated",
         "4 compensated"],
)  # fmt: skip
def test_what_rounding_makes_is_explained(
    way: Callable[..., Rounded], choice: dict[str, float]
) -> None:
    assert 0.05 < judged(way(**choice)).ratio < 1


def one(array: np.ndarray, at: tuple[int, ...], to: Callable[[float], float]) -> np.ndarray:
    changed = array.copy()
    changed[at] = to(changed[at])
    return changed


EIGHT, FOUR = rounded(8), rounded(4, 16)
FAULTS: dict[str, tuple[Rounded, str]] = {
    "all scales 1 % off": (replace(EIGHT, scales=EIGHT.scales * 1.01), "scale"),
    "a channel's scale 2 % off": (
        replace(EIGHT, scales=one(EIGHT.scales, (0, 5), lambda it: 1.02 * it)),
        "index 5 of axis 1",
    ),
    "a channel's bias dropped": (
        replace(EIGHT, bias=one(BIAS, (7,), lambda it: 0.0)), "index 7 of axis 1",
    ),
    "scales of neighbours": (replace(EIGHT, scales=np.roll(EIGHT.scales, 1)), ""),
    "zero point off by one": (replace(EIGHT, zero=1.0), ""),
    "one weight is zero": (
        replace(EIGHT, numbers=one(EIGHT.numbers, (3, 9), lambda it: 0.0)), "index 9 of axis 1",
    ),
    "4 bits in the place of 8": (replace(EIGHT, numbers=16 * np.round(EIGHT.numbers / 16)), ""),
    "all scales 15 % off, 4 bits": (replace(FOUR, scales=FOUR.scales * 1.15), "scale"),
    "a block's scale of its neighbour": (
        replace(FOUR, scales=one(FOUR.scales, (1, 6), lambda _: FOUR.scales[1, 5])),
        "index 6 of axis 1",
    ),
    "halves of bytes swapped": (
        replace(FOUR, numbers=FOUR.numbers.reshape(-1, 2, WIDTH)[:, ::-1].reshape(W.shape)), "",
    ),
    "zero point off by one, 4 bits": (replace(FOUR, zero=1.0), ""),
    "a channel's scale 20 % off, 4 bits": (
        replace(FOUR, scales=FOUR.scales * np.where(np.arange(WIDTH) == 6, 1.2, 1)),
        "scale of index 6 of axis 1",
    ),
    "blocks of another order": (replace(FOUR, scales=FOUR.scales[::-1]), ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_it_does_not_make_is_not(fault: str) -> None:
    lowered, location = FAULTS[fault]
    found = judged(lowered)
    assert found.ratio > 1
    assert location in found.location


def test_what_calibrated_ranges_cut_off_is_allowed() -> None:
    opened = EIGHT.product()
    want = (X @ W + BIAS).astype(np.float32)
    top = float(np.quantile(opened, 0.99))
    cut = np.minimum(opened, top)
    runs = noisy(EIGHT)
    assert excess(want, cut, [np.minimum(run, top) for run in runs]).ratio > 1
    assert excess(want, cut, runs, opened).ratio < 1
    # An activation that the ends of the range stand for, or are below.
    clipped = np.minimum(want, 1.1 * top)
    assert excess(clipped, cut, runs, opened).ratio < 1
    for wrong in (1.01, 0.99):
        assert excess(want, wrong * cut, [wrong * run for run in runs], wrong * opened).ratio > 1


def test_numbers_that_are_none_count_only_where_the_original_has_numbers() -> None:
    want, exact = (EIGHT.product() for _ in range(2))
    runs = [exact * (1 + 0.01 * rng.standard_normal(exact.shape)) for _ in range(RUNS)]
    want[3, 4] = np.nan
    want[5, 6] = -3e38
    exact[3, 4] = exact[5, 6] = 7.0
    assert excess(want, exact, runs).ratio < 1
    exact[0, 0] = np.inf
    assert excess(want, exact, runs).ratio == np.inf
    assert excess(want, exact[1:], runs).ratio == np.inf


def test_without_runs_nothing_is_known() -> None:
    assert excess(X, 2 * X, [np.full_like(X, np.nan)] * RUNS) == Excess(0.0, "")


def test_where_no_weight_is_rounded_float32_is_expected() -> None:
    for part, is_explained in ((0.0, True), (1e-4, False)):
        exact = (X * (1 + part)).astype(np.float32)
        assert (excess(X, exact, [exact] * RUNS).ratio < 1) is is_explained

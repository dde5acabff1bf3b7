"""Whether rounded weights explain the error of a step of a lowered model.

The step is run several times with each weight moved by up to half a step of its scale. What that
moves the result by is the error that rounding to the nearest makes. Methods that choose numbers
otherwise (other ranges, error compensation) make about as much. The error of a step may be a small
multiple of it: as a whole, and at each index of each axis. The part of the error that is a
multiple of the value itself, where a wrong scale shows, has a limit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ortkit.verify.accuracy import SENTINEL
from ortkit.verify.tolerances import TOLERANCES

#: How many times as large as what moved weights make. GPTQ of 4 bits in blocks of 128, calibrated
#: on 100 tokens, reached 2.1 on a small llama (2026-11).
FACTOR = 2.5
#: Slices that weights move by less are judged at this part of the rms over the axis.
_LEAST_SLICE = 0.25
#: A single number of few runs may be that many times their rms by chance.
_LEAST_CHANCE = 3.0
#: Fewer runs tell nothing of the error that is usual.
_FEWEST_RUNS = 2
#: What float32 adds, in epsilons at the scale of the largest element.
_FLOOR_EPS = 32.0


@dataclass(frozen=True)
class Excess:
    """The part of a value whose error is least explained."""

    ratio: float
    """Its error over what is allowed; more than one is wrong."""
    place: str
    """Where it is: `index 3 of axis 1`, or `scale` with or without that."""


@dataclass(frozen=True)
class _Slices:
    """How a value is cut: at each index of one axis, or not at all."""

    axis: int | None
    count: int
    """Elements of a slice."""

    def place(self, index: int) -> str:
        """Name a slice; the whole has no name."""
        return "" if self.axis is None else f"index {index} of axis {self.axis}"

    def products(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the scalar product of each slice of two arrays: [slices]."""
        axes = list(range(left.ndim))
        kept = [] if self.axis is None else [self.axis]
        return np.asarray(np.einsum(left, axes, right, axes, kept)).reshape(-1)


@dataclass(frozen=True)
class _Part:
    """Slices of a difference."""

    norms: np.ndarray
    along: np.ndarray
    """Scalar products with the value's slices, in units of these."""


def excess(
    expected: np.ndarray,
    exact: np.ndarray,
    runs: Iterable[np.ndarray],
    opened: np.ndarray | None = None,
) -> Excess:
    """Compare the error of a step without rounded activations with that of moved weights.

    Args:
        expected: The original's.
        exact: The lowered step's, without rounded activations.
        runs: The same as `opened`, or `exact` without that, with moved weights.
        opened: The same as `exact` without the ends of calibrated ranges. An element may lie
            between the two.
    """
    if exact.shape != expected.shape:
        return Excess(np.inf, "")
    counts = np.isfinite(expected) & (np.abs(expected) < SENTINEL)
    opened = exact if opened is None else opened
    if not (np.isfinite(exact[counts]).all() and np.isfinite(opened[counts]).all()):
        return Excess(np.inf, "")
    want = np.where(counts, expected, 0).astype(np.float64)
    nearest = np.clip(want, np.minimum(exact, opened), np.maximum(exact, opened))
    cuts = _cuts(want.shape)

    def parts(left: np.ndarray, right: np.ndarray) -> list[_Part]:
        error = np.zeros_like(want)
        np.subtract(left, right, out=error, where=counts, dtype=np.float64)
        return [_part(cut, error, want) for cut in cuts]

    # A run at a time: its differences have eight bytes for each element.
    noise = [parts(run, opened) for run in runs if np.isfinite(run[counts]).all()]
    if len(noise) < _FEWEST_RUNS:
        return Excess(0.0, "")
    own = parts(nearest, want)
    floor = _FLOOR_EPS * TOLERANCES["float32"].epsilon * float(np.abs(want).max(initial=0.0))
    found = [Excess(0.0, "")]
    for index, cut in enumerate(cuts):
        sizes, moved = np.sqrt(cut.products(want, want)), [each[index] for each in noise]
        found += _judged(cut, own[index], moved, sizes, floor * cut.count**0.5 + _TINY)
    return max(found, key=lambda each: each.ratio)


def _cuts(shape: tuple[int, ...]) -> list[_Slices]:
    count = int(np.prod(shape))
    axes = [axis for axis, length in enumerate(shape) if 1 < length < count]
    return [_Slices(None, count), *(_Slices(axis, count // shape[axis]) for axis in axes)]


def _part(cut: _Slices, error: np.ndarray, want: np.ndarray) -> _Part:
    sizes = np.sqrt(cut.products(want, want))
    products = cut.products(error, want)
    along = np.divide(products, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    return _Part(np.sqrt(cut.products(error, error)), np.abs(along))


def _judged(
    cut: _Slices, own: _Part, noise: list[_Part], sizes: np.ndarray, rest: float
) -> list[Excess]:
    """Return the slice whose error is least explained, and the one whose scale is.

    Args:
        cut: The slices.
        own: Of the error.
        noise: Of what moved weights make, by run.
        sizes: Norms of the value's slices.
        rest: What float32 adds to a slice.
    """
    moved, along = (
        np.stack([each.norms for each in noise]),
        np.stack([each.along for each in noise]),
    )
    squares, parts = np.square(moved), np.square(along)
    usual = _usual(squares.mean(axis=0))
    # Of few rows and products some are far from the rms: as far as a run is from the others.
    others = _usual((squares.sum(axis=0) - squares) / (len(moved) - 1))
    chance = max(1.0, float((moved / (others + rest)).max()))
    # Numbers that are chosen for the smallest error are smaller than the weights, by the square of
    # the relative error.
    shrunk = np.divide(np.square(own.norms), sizes, out=np.zeros_like(sizes), where=sizes > 0)
    share = float(np.sqrt(parts.sum() / max(float(squares.sum()), _TINY)))
    scaled = np.maximum(np.sqrt(parts.mean(axis=0)), share * usual)
    rare = max(_LEAST_CHANCE, float((along / (scaled + rest)).max()))
    ratios = own.norms / (FACTOR * chance * usual + rest)
    scales = own.along / (FACTOR * rare * scaled + shrunk + rest)
    return [_worst(cut, ratios, ""), _worst(cut, scales, "scale")]


def _usual(squares: np.ndarray) -> np.ndarray:
    """Return root mean squares of slices; [..., slices] of their squares."""
    least = _LEAST_SLICE**2 * squares.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt(np.maximum(squares, least)))


def _worst(cut: _Slices, ratios: np.ndarray, what: str) -> Excess:
    at = int(np.argmax(ratios))
    return Excess(float(ratios[at]), " of ".join(filter(None, (what, cut.place(at)))))


_TINY = float(np.finfo(np.float64).tiny)

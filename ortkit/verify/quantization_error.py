"""Whether rounded weights explain the error of a step of a lowered model.

The step is run several times with each weight moved by up to half a step of its scale. What that
moves the result by is the error that rounding to the nearest makes. Methods that choose numbers
otherwise (other ranges, error compensation) make about as much. The error of a step may be a small
multiple of it: as a whole, at each index of each axis, and in the direction of the result itself,
where a wrong scale shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Where it is: `index 3 of axis 1`, or `scale`."""


@dataclass(frozen=True)
class _Norms:
    """Norms of one array's slices along one axis."""

    place: str
    norms: np.ndarray
    count: int
    """Elements of a slice."""


def excess(
    expected: np.ndarray,
    exact: np.ndarray,
    runs: Sequence[np.ndarray],
    unsaturated: np.ndarray | None = None,
) -> Excess:
    """Compare the error of a step without rounded activations with that of moved weights.

    Args:
        expected: The original's.
        exact: The lowered step's, without rounded activations.
        runs: The same with moved weights.
        unsaturated: The same as `exact` without the ends of calibrated ranges. What these cut off
            is allowed.
    """
    if exact.shape != expected.shape:
        return Excess(np.inf, "")
    counts = np.isfinite(expected) & (np.abs(expected) < SENTINEL)
    want = np.where(counts, expected, 0).astype(np.float64)
    error = _difference(exact, want, counts)
    noise = [_difference(run, exact, counts) for run in runs]
    noise = [each for each in noise if np.isfinite(each).all()]
    if not np.isfinite(error).all():
        return Excess(np.inf, "")
    if len(noise) < _FEWEST_RUNS:
        return Excess(0.0, "")
    cut = np.zeros_like(want) if unsaturated is None else _difference(exact, unsaturated, counts)
    floor = _FLOOR_EPS * TOLERANCES["float32"].epsilon * float(np.abs(want).max(initial=0.0))
    worst = _along(want, error, noise, cut, floor)
    parts = zip(_norms(error), _norms(cut), *map(_norms, noise), strict=True)
    for own, lost, *moved in parts:
        found = _worst_slice(own, lost, np.stack([each.norms for each in moved]), floor)
        worst = max(worst, found, key=lambda each: each.ratio)
    return worst


def _difference(left: np.ndarray, right: np.ndarray, counts: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(counts, left.astype(np.float64) - right, 0.0)


def _worst_slice(own: _Norms, lost: _Norms, moved: np.ndarray, floor: float) -> Excess:
    """Return the slice that is least explained.

    Args:
        own: Of the error.
        lost: Of what saturation costs.
        moved: What weights move slices by: [runs, slices].
        floor: What float32 adds to an element.
    """
    rest = floor * own.count**0.5
    usual = _usual(np.square(moved).mean(axis=0)) + rest
    # Of few rows and products some are far from the rms: as far as a run is from the others.
    others = (np.square(moved).sum(axis=0) - np.square(moved)) / (len(moved) - 1)
    chance = max(1.0, float((moved / (_usual(others) + rest + _TINY)).max(initial=0.0)))
    allowed = FACTOR * chance * usual + lost.norms + _TINY
    at = int(np.argmax(own.norms / allowed))
    place = f"index {at} of {own.place}" if own.place else ""
    return Excess(float(own.norms[at] / allowed[at]), place)


def _usual(squares: np.ndarray) -> np.ndarray:
    """Return root mean squares of slices; [..., slices] of their squares."""
    least = _LEAST_SLICE**2 * squares.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt(np.maximum(squares, least)))


def _along(
    want: np.ndarray,
    error: np.ndarray,
    noise: Sequence[np.ndarray],
    cut: np.ndarray,
    floor: float,
) -> Excess:
    """Compare how much of the value itself is in the error.

    Numbers that are chosen for the smallest error are smaller than the weights, by the square of
    the relative error.
    """
    size = float(np.linalg.norm(want))
    if size == 0.0:
        return Excess(0.0, "")
    moved = [float((each * want).sum()) / size for each in noise]
    usual = float(np.sqrt(np.square(moved).mean()))
    shrunk = float(np.square(error).sum()) / size
    rest = floor * want.size**0.5 + float(np.linalg.norm(cut))
    allowed = FACTOR * _LEAST_CHANCE * usual + shrunk + rest + _TINY
    return Excess(abs(float((error * want).sum())) / size / allowed, "scale")


def _norms(array: np.ndarray) -> Iterator[_Norms]:
    squares = np.square(array)
    yield _Norms("", np.sqrt(squares.sum(keepdims=True).reshape(1)), array.size)
    for axis, length in enumerate(array.shape):
        if length > 1 and array.size > length:
            others = tuple(each for each in range(array.ndim) if each != axis)
            sums = np.sqrt(squares.sum(axis=others))
            yield _Norms(f"axis {axis}", sums, array.size // length)


_TINY = float(np.finfo(np.float64).tiny)

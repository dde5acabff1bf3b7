"""Whether rounded weights explain the error of a step of a lowered model.

The step is run several times with each weight moved by up to half a step of its scale. What that
moves the result by is the error that rounding to the nearest makes. Methods that choose numbers
otherwise (other ranges, error compensation) make about as much. The error of a step may be a small
multiple of it: as a whole, and at each index of each axis. The part of the error that is a
multiple of the value itself, where a wrong scale shows, has a limit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

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
#: Elements of a block of rows: what is computed of them stays in a processor's cache.
_BLOCK = 1 << 15


class RunRows(Protocol):
    """A run whose rows are computed where they are asked for: [rows, length of the last axis]."""

    def __getitem__(self, block: slice, /) -> np.ndarray:
        """Return some rows."""


@dataclass(frozen=True)
class Excess:
    """The part of a value whose error is least explained."""

    ratio: float
    """Its error over what is allowed; more than one is wrong."""
    location: str
    """Where it is: `index 3 of axis 1`, or `scale` with or without that."""


@dataclass(frozen=True)
class _Slices:
    """How a value is cut: at each index of one axis, or not at all."""

    axis: int | None
    count: int
    """Elements of a slice."""

    def location(self, index: int) -> str:
        """Name a slice; the whole has no name."""
        return "" if self.axis is None else f"index {index} of axis {self.axis}"

    def sums(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the sum of each slice: [slices].

        Args:
            rows: Sums over the last axis, in the shape of the other axes.
            columns: Sums over all other axes.
        """
        if self.axis is None:
            return np.asarray(rows.sum()).reshape(-1)
        if self.axis == rows.ndim:
            return columns
        return np.asarray(rows.sum(axis=tuple(a for a in range(rows.ndim) if a != self.axis)))


@dataclass(frozen=True)
class _Part:
    """Slices of a difference."""

    norms: np.ndarray
    along: np.ndarray
    """Scalar products with the value's slices, in units of these."""


def excess(
    expected: np.ndarray,
    exact: np.ndarray,
    runs: Iterable[np.ndarray | RunRows],
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
    cut_want = _CutValue(want, counts)
    noise = [parts for run in runs if (parts := cut_want.parts(run, opened)) is not None]
    if len(noise) < _FEWEST_RUNS:
        return Excess(0.0, "")
    own = cut_want.parts(nearest, want)
    assert own is not None  # all that counts is finite
    floor = _FLOOR_EPS * TOLERANCES["float32"].epsilon * float(np.abs(want).max(initial=0.0))
    found = [Excess(0.0, "")]
    for index, cut in enumerate(cut_want.cuts):
        moved, rest = [each[index] for each in noise], floor * cut.count**0.5 + _TINY
        found += _judged(cut, own[index], moved, cut_want.sizes[index], rest)
    return max(found, key=lambda each: each.ratio)


class _CutValue:
    """A value, and how differences of its size are cut."""

    def __init__(self, want: np.ndarray, counts: np.ndarray) -> None:
        """Cut the value itself.

        Args:
            want: In float64.
            counts: Which elements count; the value is 0 at the others.
        """
        self._leading = want.shape[:-1]
        self._shape = (math.prod(self._leading), want.shape[-1] if want.ndim else 1)
        self._want = want.reshape(self._shape)
        self._others = None if counts.all() else ~counts.reshape(self._shape)
        self.cuts = _cuts(want.shape)
        sums = _Sums(self._shape)
        for block in self._blocks():
            sums.add(block, self._want[block], self._want[block])
        self.sizes = [np.sqrt(each) for each in sums.by(self.cuts, self._leading)]
        """Norms of the value's slices, by cut."""

    def parts(self, left: np.ndarray | RunRows, right: np.ndarray) -> list[_Part] | None:
        """Return the difference of two, cut; None if the left one is not finite where it counts.

        The differences have eight bytes for each element, so that a few rows at a time are made.
        """
        if isinstance(left, np.ndarray | np.generic):  # numpy makes numbers of no axes the latter
            left = np.reshape(left, self._shape)
        right = np.reshape(right, self._shape)
        squares, along = _Sums(self._shape), _Sums(self._shape)
        for block in self._blocks():
            error = np.subtract(left[block], right[block], dtype=np.float64)
            if self._others is not None:
                error[self._others[block]] = 0.0
            if not np.isfinite(error).all():
                return None
            squares.add(block, error, error)
            along.add(block, error, self._want[block])
        return [
            _Part(np.sqrt(square), np.abs(_over(product, size)))
            for square, product, size in zip(
                squares.by(self.cuts, self._leading),
                along.by(self.cuts, self._leading),
                self.sizes,
                strict=True,
            )
        ]

    def _blocks(self) -> Iterator[slice]:
        rows, length = self._shape
        step = max(1, _BLOCK // max(1, length))
        return (slice(at, at + step) for at in range(0, rows, step))


class _Sums:
    """Products of two arrays [rows, n], summed over each axis."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._rows, self._columns = np.zeros(shape[0]), np.zeros(shape[1])

    def add(self, block: slice, left: np.ndarray, right: np.ndarray) -> None:
        """Add some rows."""
        self._rows[block] = np.einsum("ij,ij->i", left, right)
        self._columns += np.einsum("ij,ij->j", left, right)

    def by(self, cuts: Iterable[_Slices], leading: tuple[int, ...]) -> list[np.ndarray]:
        """Return the sums of all slices of each cut; `leading` has the axes of the rows."""
        return [cut.sums(self._rows.reshape(leading), self._columns) for cut in cuts]


def _over(products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Divide; what has no size gives 0."""
    return np.asarray(np.divide(products, sizes, out=np.zeros_like(sizes), where=sizes > 0))


def _cuts(shape: tuple[int, ...]) -> list[_Slices]:
    count = int(np.prod(shape))
    axes = [axis for axis, length in enumerate(shape) if 1 < length < count]
    return [_Slices(None, count), *(_Slices(axis, count // shape[axis]) for axis in axes)]


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
    shrunk = _over(np.square(own.norms), sizes)
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
    return Excess(float(ratios[at]), " of ".join(filter(None, (what, cut.location(at)))))


_TINY = float(np.finfo(np.float64).tiny)

"""Errors of the rows of an output, and what a kernel may err beside its body.

For the process that runs kernels: it imports numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.verify.rows import row_errors
from ortkit.verify.tolerances import PEAK_PART, SCALE_FLOOR

#: Times as much as its body in working precision a kernel may err.
BODY_FACTOR = 2.0
#: Rows with larger magnitudes hold numbers of masks.
_SENTINEL_LEAST = 2.0**13


@dataclass(frozen=True)
class Errors:
    """Largest errors of the rows of an output."""

    relative: np.ndarray
    """Over the scale of the row, in epsilons."""
    absolute: np.ndarray

    @classmethod
    def of(
        cls, expected: np.ndarray, actual: np.ndarray, epsilon: float, least: float = 0.0
    ) -> Errors:
        """Return the errors of [rows, n] beside [rows, n].

        Args:
            expected: What is right.
            actual: What is judged.
            epsilon: Of the type of the result.
            least: The smallest normal number of that type. Numbers below are as far from each
                other as those there, so rows below are judged at this scale.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            absolute = np.abs(expected - actual).max(axis=1)
        scales = np.abs(expected).max(axis=1)
        peak = scales.max()
        if peak > _SENTINEL_LEAST:
            return cls(row_errors(expected, actual)[0] / epsilon, absolute)
        scales = np.maximum(scales, max(PEAK_PART * peak, SCALE_FLOOR, least))
        return cls(absolute / scales / epsilon, absolute)

    @property
    def worst(self) -> float:
        """The largest relative error."""
        return float(self.relative.max())

    def beside(
        self, noise: Errors, roundings: float, few: float, moves: Sequence[Errors] = ()
    ) -> np.ndarray:
        """Return the errors as parts of what is allowed: [rows].

        Values that are made up are alike in all rows, so that rounding errors are, too: beside
        the largest relative error of the body its largest absolute error counts. A Relu leaves
        rows of a few small numbers, whose own scale tells nothing.

        Args:
            noise: The body's errors.
            roundings: How many times these the kernel may make.
            few: Epsilons that are allowed beyond.
            moves: How far rows move with roundings of the inputs.
        """
        relative, absolute = noise.worst, float(noise.absolute.max())
        if moves:
            relative = noise.worst + np.max([each.relative for each in moves], axis=0)
            absolute = noise.absolute.max() + np.max([each.absolute for each in moves], axis=0)
        allowed = roundings * (BODY_FACTOR * relative + few)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_size = self.absolute / (roundings * BODY_FACTOR * absolute)
        by_size = np.where(self.absolute == 0, 0.0, by_size)
        return np.asarray(np.minimum(self.relative / allowed, by_size))


def nearest(
    beside: Sequence[Errors],
    noise: Errors,
    roundings: float,
    few: float,
    moves: Sequence[Errors] = (),
) -> tuple[Errors, np.ndarray]:
    """Return the errors beside the guide that is nearest, and as parts of what is allowed."""
    found = [(each, each.beside(noise, roundings, few, moves)) for each in beside]
    return min(found, key=lambda pair: float(pair[1].max()))

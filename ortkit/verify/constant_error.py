"""Whether the rounding of constants in half precision explains the error of a value.

The spread of runs with perturbed constants bounds rows by their largest deviation. An error that
all elements have alike, such as weights of a norm that is folded with another epsilon, hides below
it. Like that of a lowered step, the error is therefore compared with what rounding makes usually:
as a whole, at each index of each axis, and along the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortkit.verify.inputs.feeds import Value
from ortkit.verify.lowered.quantization_error import excess
from ortkit.verify.perturbed.perturbation import ROUNDINGS


def unexplained(
    expected: Value,
    actual: Value,
    lost: Sequence[Value],
    new: Sequence[Value],
    perturbed: Sequence[Value],
    largest: float,
) -> str:
    """Say how much of an error rounded constants do not explain; empty if they do.

    Args:
        expected: The original's value.
        actual: The candidate's.
        lost: The original's, with constants perturbed that the candidate lacks.
        new: The candidate's, with constants perturbed that the original lacks.
        perturbed: The original's, with all values perturbed by roundings of float32.
        largest: The largest number of the constants' type; larger ones saturate.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return ""
    if expected.dtype != np.float32 or not (lost or new):
        return ""
    if not np.abs(expected).max(initial=0.0) < largest:
        return ""
    own, theirs, around = (_arrays(runs, expected) for runs in (lost, new, perturbed))
    # Runs are moved by several roundings, so that few of them show the largest.
    kinds = ((own, expected, ROUNDINGS), (theirs, actual, ROUNDINGS), (around, expected, 1.0))
    runs = (
        _MovedRows(actual, [(of[n % len(of)], base, by) for of, base, by in kinds if of])
        for n in range(max(len(own), len(theirs)))
    )
    with np.errstate(all="ignore"):
        worst = excess(expected, actual, runs)
    if worst.ratio <= 1.0:
        return ""
    where = f": {worst.location}" if worst.location else ""
    return f"off by {worst.ratio:.3g} times what rounding its constants may cost{where}"


class _MovedRows:
    """A value with what several runs move it by, as [rows, length of the last axis]."""

    def __init__(
        self, value: np.ndarray, moves: Sequence[tuple[np.ndarray, np.ndarray, float]]
    ) -> None:
        """Say what is added.

        Args:
            value: The value.
            moves: A run, the run without perturbation, and what their difference is divided by.
        """
        shape = (math.prod(value.shape[:-1]), value.shape[-1] if value.ndim else 1)
        self._value = value.reshape(shape)
        self._moves = [(run.reshape(shape), base.reshape(shape), by) for run, base, by in moves]

    def __getitem__(self, block: slice) -> np.ndarray:
        """Return some rows, in float64."""
        made = self._value[block].astype(np.float64)
        for run, base, by in self._moves:
            moved = np.subtract(run[block], base[block], dtype=np.float64)
            moved /= by
            made += moved
        return made


def _arrays(runs: Sequence[Value], like: np.ndarray) -> list[np.ndarray]:
    return [run for run in runs if isinstance(run, np.ndarray) and run.shape == like.shape]

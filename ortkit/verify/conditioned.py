"""One value against its reference, with a tolerance that comes from the model's conditioning.

A float may be off by the larger of two things. The floor is a few epsilons of its type at the
scale of its row. The spread is twice how far its row moves in runs with perturbed values
(`perturbed/`), as far as a cap. Beyond the cap the value is ill-conditioned on these inputs:
an error there proves nothing, and the value is inconclusive.

Integers and booleans are equal, but for near ties: elements that differ in some perturbed run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ortkit.verify.compare import ILL_CONDITIONED, OutputComparison, compare_outputs
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.rows import as_rows, row_errors, row_spread
from ortkit.verify.tolerances import CAPS, SPREAD_FACTOR, TOLERANCES


@dataclass(frozen=True)
class Limits:
    """What a stage of verification allows."""

    floor_eps: Mapping[str, float]
    """By type, the epsilons that any value of it may be off."""
    cap: float
    """The part of a row's scale beyond which its spread allows no more."""
    largest: float = math.inf
    """The largest number of the coarsest type that the candidate's constants were rounded to:
    larger ones saturate."""


@dataclass(frozen=True)
class Moved:
    """A value in runs that differ by roundings, and how much of their spread counts."""

    exact: Value
    """The run without a perturbation."""
    runs: Sequence[Value]
    cap: float
    """The part of a row's scale beyond which the spread allows no more."""
    factor: float = SPREAD_FACTOR
    """How many times the spread a row may be off."""

    def saturated(self, largest: float) -> Moved:
        """Return this with all magnitudes of at most `largest`."""
        exact = self.exact
        assert isinstance(exact, np.ndarray)
        runs = [_saturated(run, largest) for run in _like(exact, self.runs)]
        return replace(self, exact=_saturated(exact, largest), runs=runs)

    def spread(self, shape: tuple[int, ...], scales: np.ndarray) -> np.ndarray:
        """Return what each row may be off for the runs, as parts of the rows' scales.

        Args:
            shape: The value's shape as rows.
            scales: Of these rows.
        """
        exact = self.exact
        assert isinstance(exact, np.ndarray)
        rows = [run.reshape(shape) for run in _like(exact, self.runs)]
        return self.factor * row_spread(exact.reshape(shape), rows, scales)


def limits_of(coarsest: str) -> Limits:
    """Return the limits for outputs of a whole model under deploy settings.

    Args:
        coarsest: The coarsest type in which the model has values; see `Reference`.
    """
    return Limits(_HALF_FLOORS, CAPS[coarsest or "float32"])


#: The last steps of a model round a few times; what comes before is measured.
_HALF_FLOORS = {"float16": 4.0, "bfloat16": 4.0}


def compare_conditioned(
    name: str,
    expected: Value,
    actual: Value,
    limits: Limits,
    moved: Sequence[Moved] = (),
) -> OutputComparison:
    """Compare one value with its reference.

    Args:
        name: The value's name.
        expected: The reference.
        actual: The values that are judged.
        limits: Of this stage.
        moved: The value in perturbed runs.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return compare_outputs(name, expected, actual)
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return compare_outputs(name, expected, actual)
    if expected.dtype.kind == "c":
        return compare_outputs(name, expected, actual)
    if expected.dtype.name not in TOLERANCES:
        ties = np.zeros(expected.shape, bool)
        for each in moved:
            ties |= disagreement(each.exact, each.runs)
        return compare_outputs(name, expected, actual, tie=lambda _: ties)
    if limits.largest < math.inf:
        expected, actual = (_saturated(each, limits.largest) for each in (expected, actual))
        moved = [each.saturated(limits.largest) for each in moved]
    return _compare_floats(name, expected, actual, limits, moved)


def _saturated(array: np.ndarray, largest: float) -> np.ndarray:
    return np.asarray(np.clip(array, -largest, largest))


def disagreement(exact: Value, runs: Sequence[Value]) -> np.ndarray:
    """Return the elements that differ in some run: near ties."""
    assert isinstance(exact, np.ndarray)
    disagree = np.zeros(exact.shape, bool)
    for run in _like(exact, runs):
        disagree |= np.asarray(run != exact)
    return disagree


def _like(expected: np.ndarray, runs: Sequence[Value]) -> list[np.ndarray]:
    arrays = (run for run in runs if isinstance(run, np.ndarray))
    return [run for run in arrays if run.shape == expected.shape]


def is_close(found: OutputComparison) -> bool:
    """Say whether a value is off by little more than its perturbed runs allow.

    Of many rows, some are off by more than a few runs show of what roundings move. So it is with
    what roundings of constants explain.
    """
    return not found.equal and found.max_error_eps <= _CLOSE * found.allowed_eps


#: Times what is allowed.
_CLOSE = 4.0


def _compare_floats(
    name: str,
    expected: np.ndarray,
    actual: np.ndarray,
    limits: Limits,
    moved: Sequence[Moved],
) -> OutputComparison:
    dtype = expected.dtype.name
    epsilon = TOLERANCES[dtype].epsilon
    floor = limits.floor_eps.get(dtype, TOLERANCES[dtype].allowed_eps)
    if expected.tobytes() == actual.tobytes():
        return OutputComparison(name, dtype, 0.0, floor, (), True)
    leading, rows = as_rows(expected)
    errors, scales = row_errors(rows, actual.reshape(rows.shape))
    parts = errors / epsilon
    spreads = [(each.spread(rows.shape, scales), each.cap) for each in moved]
    bounded = sum((np.minimum(spread, cap) for spread, cap in spreads), np.zeros(len(rows)))
    allowed = np.maximum(floor, bounded / epsilon)
    row = int(np.argmax(parts / allowed)) if parts.size else 0
    worst, most = (float(parts[row]), float(allowed[row])) if parts.size else (0.0, floor)
    wrong = parts > allowed
    index = tuple(int(i) for i in np.unravel_index(row, leading)) if leading and worst else ()
    is_capped = np.zeros(len(rows), bool)
    for spread, cap in spreads:
        is_capped |= spread > cap
    if not wrong.any():
        return OutputComparison(name, dtype, worst, most, index, True)
    at = f" in row {list(index)}" if index else ""
    if is_capped[wrong].all():
        reason = f"{ILL_CONDITIONED}{at}: roundings move it by more than is allowed"
        return OutputComparison(name, dtype, worst, most, index, True, 0, reason, True)
    reason = f"off by {worst:.4g} epsilons of {dtype}{at}, {most:.4g} are allowed"
    if np.isinf(worst):
        reason = f"NaN or infinity against a number{at}"
    return OutputComparison(name, dtype, worst, most, index, False, 0, reason)

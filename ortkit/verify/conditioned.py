"""One value against its reference, with a tolerance that comes from the model's conditioning.

A float may be off by the larger of two things: the floor, a few epsilons of its type at the scale of
its row; and the spread of its row over runs of the original with perturbed values (see
`perturbation.py`), as far as a cap. Beyond the cap the value is ill-conditioned on these inputs: an
error there proves nothing, and the value is inconclusive.

Integers and booleans are equal, but for near ties: elements about which the perturbed runs disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.verify.compare import OutputComparison, compare_outputs
from ortkit.verify.feeds import Value
from ortkit.verify.rows import Bounds, as_rows, row_errors_and_scales, row_spread
from ortkit.verify.tolerances import PEAK_PART, TOLERANCES


@dataclass(frozen=True)
class Limits:
    """What a stage of verification allows."""

    floor_eps: dict[str, float]
    """By type, the epsilons that any value of it may be off."""
    cap: float
    """The part of a row's scale beyond which its spread allows no more."""


def compare_conditioned(
    name: str, expected: Value, actual: Value, limits: Limits, runs: Sequence[Value] = ()
) -> OutputComparison:
    """Compare one value with its reference.

    Args:
        name: The value's name.
        expected: The reference.
        actual: What is judged.
        limits: Of this stage.
        runs: The same value in runs with perturbed values.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return compare_outputs(name, expected, actual)
    same = [r for r in runs if isinstance(r, np.ndarray) and r.shape == expected.shape]
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return compare_outputs(name, expected, actual)
    if expected.dtype.name not in TOLERANCES:
        return compare_outputs(name, expected, actual, tie=lambda _: _disagreement(expected, same))
    if expected.dtype.kind == "c":
        return compare_outputs(name, expected, actual)
    return _compare_floats(name, expected, actual, limits, same)


def _disagreement(expected: np.ndarray, runs: Sequence[np.ndarray]) -> np.ndarray:
    disagree = np.zeros(expected.shape, bool)
    for run in runs:
        disagree |= np.asarray(run != expected)
    return disagree


def _compare_floats(
    name: str,
    expected: np.ndarray,
    actual: np.ndarray,
    limits: Limits,
    runs: Sequence[np.ndarray],
) -> OutputComparison:
    dtype = expected.dtype.name
    epsilon = TOLERANCES[dtype].epsilon
    floor = limits.floor_eps.get(dtype, TOLERANCES[dtype].allowed_eps)
    if expected.tobytes() == actual.tobytes():
        return OutputComparison(name, dtype, 0.0, floor, (), True)
    leading, rows = as_rows(expected)
    bounds = Bounds(lambda _: floor, PEAK_PART)
    errors, scales = row_errors_and_scales(rows, actual.reshape(rows.shape), bounds)
    spread = row_spread(rows, [run.reshape(rows.shape) for run in runs])
    parts = errors / epsilon
    conditioned = spread / scales / epsilon
    cap = max(floor, limits.cap / epsilon)
    allowed = np.maximum(floor, np.minimum(conditioned, cap))
    row = int(np.argmax(parts / allowed)) if parts.size else 0
    worst, most = (float(parts[row]), float(allowed[row])) if parts.size else (0.0, floor)
    wrong = parts > allowed
    index = tuple(int(i) for i in np.unravel_index(row, leading)) if leading and worst else ()
    is_vague = bool(wrong.any() and (conditioned[wrong] > cap).all())
    if not wrong.any():
        return OutputComparison(name, dtype, worst, most, index, True)
    at = f" in row {list(index)}" if index else ""
    if is_vague:
        reason = f"ill-conditioned{at}: roundings move it by more than {limits.cap:.2g} of its scale"
        return OutputComparison(name, dtype, worst, most, index, True, 0, reason, True)
    reason = f"off by {worst:.4g} epsilons of {dtype}{at}, {most:.4g} are allowed"
    if np.isinf(worst):
        reason = f"NaN or infinity against a number{at}"
    return OutputComparison(name, dtype, worst, most, index, False, 0, reason)

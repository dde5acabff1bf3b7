"""How far one output is from its reference, row by row, in epsilons of its dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ortkit.verify.inputs.feeds import Value
from ortkit.verify.rows import as_rows, row_errors
from ortkit.verify.tolerances import TOLERANCES, allowed_eps

TieCheck = Callable[[np.ndarray], np.ndarray]
"""Given the actual output, say for each element whether it is as good an answer."""


#: How the reason begins of what roundings move by more than is allowed.
ILL_CONDITIONED = "ill-conditioned"


@dataclass(frozen=True)
class OutputComparison:
    """What was found for one output, at worst over input sets and settings."""

    name: str
    dtype: str
    max_error_eps: float
    """Largest error over the scale of its row, in epsilons; infinite where that has no sense."""
    allowed_eps: float
    worst_row: tuple[int, ...]
    """Index of the row with the largest error, without the axes that make up a row."""
    equal: bool
    """Whether the error is within what is allowed."""
    near_ties: int = 0
    """Elements that differ, but pick a value within tolerance of the reference's pick."""
    reason: str = ""
    is_inconclusive: bool = False
    """Whether it is off where the original is ill-conditioned, so that nothing is proved."""

    def to_json(self) -> dict[str, object]:
        """Return the fields; an infinite error comes as None, as JSON has no infinity."""
        is_finite = np.isfinite(self.max_error_eps)
        return {
            "name": self.name,
            "dtype": self.dtype,
            "max_error_eps": self.max_error_eps if is_finite else None,
            "allowed_eps": self.allowed_eps,
            "worst_row": list(self.worst_row),
            "equal": self.equal,
            "near_ties": self.near_ties,
            "reason": self.reason,
        }


def compare_outputs(
    name: str,
    expected: Value,
    actual: Value,
    *,
    computed_in: str = "",
    tie: TieCheck | None = None,
) -> OutputComparison:
    """Compare one output with its reference.

    A row is the last axis, joined with those before it until it has 8 elements. Its scale is
    the largest magnitude in it, but for sentinels; see `tolerances.py`.

    Args:
        name: The output's name.
        expected: The reference.
        actual: What the candidate gave.
        computed_in: A coarser float type that floats were computed in, empty if they were not.
        tie: For integers and booleans: which differing elements are as good an answer.
    """
    if isinstance(expected, list) or isinstance(actual, list):
        return _compare_sequences(name, expected, actual, computed_in)
    if expected is None or actual is None:
        return _compare_absent(name, expected, actual)
    if expected.dtype != actual.dtype:
        return _different(name, expected, f"type {actual.dtype} instead of {expected.dtype}")
    if expected.shape != actual.shape:
        shapes = f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        return _different(name, expected, shapes)
    if expected.dtype.kind == "c":
        expected, actual = _components(expected), _components(actual)
    if expected.dtype.name not in TOLERANCES:
        return _compare_exactly(name, expected, actual, tie)
    return _compare_floats(name, expected, actual, computed_in)


def worse(left: OutputComparison, right: OutputComparison) -> OutputComparison:
    """Return the worse of two comparisons of one output, with the near ties of both."""
    chosen = right if _badness(right) > _badness(left) else left
    return replace(chosen, near_ties=left.near_ties + right.near_ties)


def _badness(each: OutputComparison) -> tuple[bool, float]:
    """Order comparisons: failed ones last, then by the error as a part of what is allowed."""
    return not each.equal, each.max_error_eps / (each.allowed_eps or 1.0)


def is_telling(value: Value) -> bool:
    """Say whether a comparison with this reference can fail: some element is finite."""
    if isinstance(value, list):
        return any(is_telling(part) for part in value)
    if value is None or value.size == 0:
        return False
    if value.dtype.name not in TOLERANCES:
        return True
    return bool(np.isfinite(value.astype(np.float64)).any())


def is_finite(array: np.ndarray) -> bool:
    """Say whether no element is infinite or NaN."""
    if array.dtype.name not in TOLERANCES:
        return True
    return bool(np.isfinite(array.astype(np.float64)).all())


def _compare_floats(
    name: str, expected: np.ndarray, actual: np.ndarray, computed_in: str
) -> OutputComparison:
    dtype = expected.dtype.name
    allowed, epsilon = allowed_eps(dtype, computed_in), TOLERANCES[dtype].epsilon
    leading, rows = as_rows(expected)
    errors = row_errors(rows, actual.reshape(rows.shape))[0] / epsilon
    row = int(errors.argmax()) if errors.size else 0
    worst = float(errors[row]) if errors.size else 0.0
    index = tuple(int(i) for i in np.unravel_index(row, leading)) if leading and worst else ()
    reason = "" if worst <= allowed else _float_reason(worst, allowed, dtype, index)
    return OutputComparison(name, dtype, worst, allowed, index, worst <= allowed, 0, reason)


def _float_reason(worst: float, allowed: float, dtype: str, row: tuple[int, ...]) -> str:
    at = f" in row {list(row)}" if row else ""
    if np.isinf(worst):
        return f"NaN or infinity against a number{at}"
    return f"off by {worst:.4g} epsilons of {dtype}{at}, {allowed:.4g} are allowed"


def _components(array: np.ndarray) -> np.ndarray:
    """View complex numbers as pairs of floats."""
    return np.stack([array.real, array.imag], axis=-1)


def _compare_exactly(
    name: str, expected: np.ndarray, actual: np.ndarray, tie: TieCheck | None
) -> OutputComparison:
    dtype = "string" if expected.dtype.kind == "O" else expected.dtype.name
    wrong = np.asarray(expected != actual)
    excused = wrong & tie(actual) if tie is not None and wrong.any() else np.zeros_like(wrong)
    near_ties, left = int(excused.sum()), wrong & ~excused
    if not left.any():
        return OutputComparison(name, dtype, 0.0, 0.0, (), True, near_ties)
    where = tuple(int(i) for i in np.argwhere(left)[0])
    reason = (
        f"{int(left.sum())} of {left.size} elements differ, first at {list(where)}: "
        f"{actual[where]} instead of {expected[where]}"
    )
    return OutputComparison(name, dtype, np.inf, 0.0, where[:-1], False, near_ties, reason)


def _compare_absent(name: str, expected: Value, actual: Value) -> OutputComparison:
    if expected is None and actual is None:
        return OutputComparison(name, "none", 0.0, 0.0, (), True)
    reason = "absent" if actual is None else "present instead of absent"
    return OutputComparison(name, "none", np.inf, 0.0, (), False, 0, reason)


def _different(name: str, expected: np.ndarray, reason: str) -> OutputComparison:
    return OutputComparison(name, expected.dtype.name, np.inf, 0.0, (), False, 0, reason)


def _compare_sequences(
    name: str, expected: Value, actual: Value, computed_in: str
) -> OutputComparison:
    if not isinstance(expected, list) or not isinstance(actual, list):
        return OutputComparison(name, "sequence", np.inf, 0.0, (), False, 0, "not both sequences")
    if len(expected) != len(actual):
        reason = f"a sequence of {len(actual)} instead of {len(expected)}"
        return OutputComparison(name, "sequence", np.inf, 0.0, (), False, 0, reason)
    total = OutputComparison(name, "sequence", 0.0, 0.0, (), True)
    for i, (want, got) in enumerate(zip(expected, actual, strict=True)):
        part = compare_outputs(name, want, got, computed_in=computed_in)
        total = worse(total, replace(part, reason=part.reason and f"part {i}: {part.reason}"))
    return total

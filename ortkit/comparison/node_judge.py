"""Whether a value that two models make from the same inputs is the same value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortkit.comparison.cuts import Given
from ortkit.verify.compare import OutputComparison, compare_outputs
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.tolerances import OWN_ERROR_FACTOR, TOLERANCES

#: Floats are moved by this many of their epsilons to see which integers are near ties.
_TIE_EPS = 64.0
#: Results of these may fall to either neighbour.
_ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
#: How often inputs are rounded otherwise.
TRIALS = 3


def compared(name: str, expected: Value, actual: Value, coarse: str = "") -> OutputComparison:
    """Compare a value of B with that of A; floats of another type are judged by the coarser."""
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        types = expected.dtype.name, actual.dtype.name
        if types[0] != types[1] and set(types) <= TOLERANCES.keys():
            coarse = max((coarse or types[0], *types), key=lambda text: TOLERANCES[text].epsilon)
            actual = actual.astype(expected.dtype)
    return compare_outputs(name, expected, actual, computed_in=coarse)


def rounded_otherwise(
    values: Mapping[str, Value], factors: Sequence[Given], trial: int
) -> dict[str, Value]:
    """Return inputs with every float moved by about one rounding, up or down at random.

    Where integers are to be looked at, trials from `TRIALS` on move by more.

    Args:
        values: The inputs of a step.
        factors: Further ones: what the step's own floats are multiplied with; see `shaken`.
        trial: The trial, which seeds the random numbers.
    """
    random = np.random.default_rng(trial)
    size = 1.0 if trial < TRIALS else _TIE_EPS
    ones = {
        factor.name: np.ones((), ir.DataType(factor.element_type).numpy()) for factor in factors
    }
    every = {**values, **ones}
    return {name: _moved(value, size, random) for name, value in every.items()}


def _moved(value: Value, size: float, random: np.random.Generator) -> Value:
    if not isinstance(value, np.ndarray) or value.dtype.name not in TOLERANCES:
        return value
    step = TOLERANCES[value.dtype.name].epsilon * size
    signs = random.integers(0, 2, value.shape) * 2.0 - 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        moved = value.astype(np.float64) * (1.0 + step * signs)
        return np.asarray(moved).astype(value.dtype)


def is_explained(
    found: OutputComparison, expected: Value, actual: Value, others: Sequence[Value]
) -> bool:
    """Say whether A's own nodes vary as much when they are rounded otherwise.

    Args:
        found: The comparison of `actual` with `expected`.
        expected: What A makes.
        actual: What B makes from the same inputs.
        others: What A makes when inputs and steps are rounded otherwise.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    if expected.dtype.name in TOLERANCES:
        errors = [compared(found.name, expected, item).max_error_eps for item in others]
        return found.max_error_eps <= OWN_ERROR_FACTOR * max(errors, default=0.0)
    if expected.shape != actual.shape:
        return False
    left = np.asarray(expected != actual)
    for other in others:
        if isinstance(other, np.ndarray) and other.shape == expected.shape:
            left &= np.asarray(other == expected)
    return not left.any()


def is_next_step(ops: Sequence[str], expected: Value, actual: Value) -> bool:
    """Say whether quantized numbers differ by one step at most, as a rounding may fall."""
    if not _ROUNDS & set(ops):
        return False
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    if expected.shape != actual.shape or expected.dtype.kind not in "iu":
        return False
    return bool((np.abs(expected.astype(np.int64) - actual.astype(np.int64)) <= 1).all())

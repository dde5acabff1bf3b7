"""Expected outputs that came with inputs, beside what the original gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortkit.verify.compare import compare_outputs
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Gap

#: The part of its row's largest value that an element may be off: the relative tolerance of
#: ONNX's own tests, as expected outputs come from other libraries and machines.
_ALLOWED = 1e-3
#: Epsilons of narrower types, one of which may be more than that.
_ALLOWED_EPS = 16.0


def mismatches(
    expected: Sequence[tuple[str, Mapping[str, Value]]],
    actual: Sequence[Mapping[str, Value]],
    excluded: Sequence[str],
    tolerance: UserTolerance | None,
) -> tuple[Gap, ...]:
    """Return the expected outputs that the original does not give.

    A candidate is judged by the original all the same: which of the two is right is not known.

    Args:
        expected: By input set, what it is called and its expected outputs by name.
        actual: By input set, the original's outputs with ONNX Runtime's optimizations off.
        excluded: Outputs that depend on random numbers.
        tolerance: What the user allows; for outputs without, elements may be off by a
            thousandth of their row's largest value.
    """
    found = []
    for (where, wanted), given in zip(expected, actual, strict=True):
        for name, value in wanted.items():
            if name in excluded or name not in given:
                continue
            reason = _differs(name, value, given[name], tolerance)
            if reason:
                found.append(
                    Gap(
                        f"the expected output {name!r} of {where}",
                        f"the original gives another: {reason}",
                        "give the outputs of this model, or --atol and --rtol for them",
                    )
                )
    return tuple(found)


def _differs(name: str, wanted: Value, given: Value, tolerance: UserTolerance | None) -> str:
    """Say how a value differs from what is expected; empty if it does not."""
    found = compare_outputs(name, wanted, given)
    if found.equal:
        return "" if tolerance is None else tolerance.exceeds(name, wanted, given)
    if not _is_number_beside_number(wanted, given):
        return found.reason
    if tolerance is not None and tolerance.bounds(name) is not None:
        return tolerance.exceeds(name, wanted, given)
    kind = TOLERANCES.get(found.dtype)
    if kind is None:
        return found.reason
    allowed = max(_ALLOWED, _ALLOWED_EPS * kind.epsilon)
    return "" if found.max_error_eps * kind.epsilon <= allowed else found.reason


def _is_number_beside_number(wanted: Value, given: Value) -> bool:
    """Say whether two values are tensors that differ in their numbers alone."""
    if not isinstance(wanted, np.ndarray) or not isinstance(given, np.ndarray):
        return False
    is_equivalent = wanted.dtype == given.dtype and wanted.shape == given.shape
    return is_equivalent and wanted.dtype.kind not in "OUS"

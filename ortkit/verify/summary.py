"""What a comparison found, in one line."""

from __future__ import annotations

import math

from ortkit.verify.compare import OutputComparison
from ortkit.verify.reference import Reference
from ortkit.verify.tolerances import OWN_ERROR_FACTOR, TOLERANCES
from ortkit.verify.verification import Gap, told

DEPLOYED = "under deploy settings"


def summarise(
    reference: Reference, outputs: tuple[OutputComparison, ...], gaps: tuple[Gap, ...]
) -> str:
    """Say in one line what was compared, and what was not."""
    parts = [f"{len(outputs)} outputs, {len(reference.feeds)} input sets"]
    parts.append(f"largest error {_largest_error(reference, outputs)}")
    if ties := sum(each.near_ties for each in outputs):
        parts.append(f"{ties} near ties")
    if reference.rounded is not None:
        parts.append("where rows are small, beside what roundings in half precision move")
    if reference.kernel_roundings > 1:
        parts.append("where rows are small, beside what kernels round more than sums of products")
    loose = [n for n, e in reference.own_errors_eps.items() if e > _loose_from(outputs, n)]
    if loose:
        what = "ONNX Runtime's own optimizations are inexact on"
        if reference.is_quantized:
            what = "the original is quantized, and one step of its numbers moves"
        parts.append(f"{what}: {', '.join(loose)}")
    if gaps:
        parts.append(f"not compared: {told(gaps)}")
    return "; ".join(parts)


def _largest_error(reference: Reference, outputs: tuple[OutputComparison, ...]) -> str:
    """Say what is the largest error, in epsilons of the type that it comes from."""
    floats = [each for each in outputs if each.dtype in TOLERANCES]
    if not floats:
        return "0 epsilons"
    worst = max(floats, key=lambda each: each.max_error_eps * TOLERANCES[each.dtype].epsilon)
    error = worst.max_error_eps * TOLERANCES[worst.dtype].epsilon
    if reference.stated:
        return f"{error:.2g} of the largest value"
    coarse = reference.computed_in.get(worst.name, "")
    if coarse not in TOLERANCES or TOLERANCES[coarse].epsilon <= TOLERANCES[worst.dtype].epsilon:
        return f"{max(each.max_error_eps for each in outputs):.3g} epsilons"
    return f"{error / TOLERANCES[coarse].epsilon:.3g} epsilons of {coarse}"


def _loose_from(outputs: tuple[OutputComparison, ...], name: str) -> float:
    """Return the error from which ONNX Runtime's own optimizations decide what is allowed."""
    dtype = next((each.dtype for each in outputs if each.name == name), "")
    return TOLERANCES[dtype].allowed_eps / OWN_ERROR_FACTOR if dtype in TOLERANCES else math.inf

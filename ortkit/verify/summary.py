"""What a comparison found, in one line."""

from __future__ import annotations

from ortkit.text import plural
from ortkit.verify.compare import OutputComparison
from ortkit.verify.reference import Reference
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.verification import Gap, gaps_text

DEPLOYED = "under deploy settings"
_MOST_NAMED = 6


def summarise(
    reference: Reference,
    outputs: tuple[OutputComparison, ...],
    rewrites: RewriteCheck,
    stated: float,
    gaps: tuple[Gap, ...],
) -> str:
    """Say in one line what was compared, and what was not."""
    parts = [f"{plural(len(outputs), 'output')}, {plural(len(reference.feeds), 'input set')}"]
    parts.append(f"largest error {_largest_error(outputs, stated)}")
    if ties := sum(each.near_ties for each in outputs):
        parts.append(plural(ties, "near tie"))
    if rewrites.compared:
        parts.append(f"{plural(len(rewrites.compared), 'inner value')} compared in float32")
    if rewrites.inconclusive:
        names = ", ".join(each.name for each in rewrites.inconclusive[:_MOST_NAMED])
        parts.append(f"ill-conditioned: {names}")
    if rewrites.guards is not None and (guards := str(rewrites.guards)):
        parts.append(guards)
    if gaps:
        parts.append(f"not compared: {gaps_text(gaps)}")
    return "; ".join(parts)


def _largest_error(outputs: tuple[OutputComparison, ...], stated: float) -> str:
    """Say what is the largest error, in epsilons of the type that it comes from."""
    floats = [each for each in outputs if each.dtype in TOLERANCES]
    if not floats:
        return "0 epsilons"
    worst = max(floats, key=lambda each: each.max_error_eps * TOLERANCES[each.dtype].epsilon)
    if stated:
        return f"{worst.max_error_eps * TOLERANCES[worst.dtype].epsilon:.2g} of the largest value"
    return f"{worst.max_error_eps:.3g} epsilons"

"""The verdicts on candidates that are wrong before they are run as a whole."""

from __future__ import annotations

from ortkit.verify.budget import MORE_TIME, NO_TIME
from ortkit.verify.judging import RANDOM
from ortkit.verify.kernels.check import KernelReport
from ortkit.verify.reference import Reference
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.verification import Gap, Verification


def wrong_kernels(state: Reference, kernels: KernelReport, rewrites: RewriteCheck) -> Verification:
    """Return the verdict on a candidate some of whose kernels differ from their bodies."""
    first = kernels.failed[0]
    return Verification(
        "no",
        f"kernel {first.op_type!r} beside its body: {first.reason}",
        samples=len(state.feeds),
        excluded=state.excluded,
        values=rewrites,
        notes=state.notes,
    )


def wrong_values(state: Reference, rewrites: RewriteCheck) -> Verification:
    """Return the verdict on a candidate some of whose values are wrong."""
    first = rewrites.wrong[0]
    kind = "output" if first.name in state.outputs else "value"
    more = f" ({len(rewrites.wrong)} values are wrong)" if len(rewrites.wrong) > 1 else ""
    return Verification(
        "no",
        f"{kind} {first.name!r}, computed from the original's values in float32:"
        f" {first.reason}{more}",
        tuple(each for each in rewrites.wrong if each.name in state.outputs),
        len(state.feeds),
        excluded=state.excluded,
        values=rewrites,
        notes=state.notes,
    )


def not_covered(gaps: tuple[Gap, ...], rewrites: RewriteCheck) -> tuple[Gap, ...]:
    """Return the gaps that the comparison of values leaves, with its own.

    What depends on random numbers is compared there on the same numbers.
    """
    open_ones = {each.name for each in rewrites.inconclusive}
    covered = {f"output {name!r}" for name in rewrites.compared if name not in open_ones}
    found = [gap for gap in gaps if gap.reason != RANDOM or gap.what not in covered]
    if rewrites.late:
        values = f"{len(rewrites.late)} of {len(rewrites.late) + len(rewrites.compared)} values"
        found.append(Gap(f"{values} in float32", NO_TIME, MORE_TIME))
    if rewrites.problem:
        found.append(Gap("the values between the inputs and the outputs", rewrites.problem))
    return tuple(found)

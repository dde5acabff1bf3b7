"""Lowering within a budget: what is off by too much, or does not pay, returns to float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortkit.errors import CheckError, KernelError
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import LOWERING, Candidates
from ortkit.optimization.kernels import foreign_note
from ortkit.optimization.workspace import Workspace
from ortkit.rewrite.failures import PassError, blamed

if TYPE_CHECKING:
    from ortkit.precision.lowering import CpuLowering


def new_lowering(work: Workspace) -> CpuLowering:
    """Return what lowers the precision, by the options of the call."""
    from ortkit.kernels.build.library import missing_toolchain
    from ortkit.precision.fp8 import Fp8Lowering
    from ortkit.precision.lowering import CpuLowering, CpuRequest

    options = work.options
    has_kernels = (
        options.has_regions and missing_toolchain(options.kernels, options.machine) is None
    )
    request = CpuRequest(
        options.precision, options.max_error, options.calibration, options.calibrate,
        options.inputs, options.samples or options.coverage, options.shapes, options.threads,
        options.cpu, has_kernels,
    )  # fmt: skip
    lowering = Fp8Lowering if options.precision == "fp8" else CpuLowering
    return lowering(work.original(), request, work.folder / "precision", options.progress)


def within_budget(candidates: Candidates, candidate: Candidate) -> Candidate:
    """Return products to float32 until the result is off by no more than the user allows.

    Args:
        candidates: Makes the candidates; returns `candidate` where it lowers nothing.
        candidate: With everything lowered that may be.

    Returns:
        A candidate within the budget, in float32 where lowering does not pay.
    """
    if candidates.lowering is None:
        return candidate
    try:
        with blamed(LOWERING, (CheckError, KernelError)):
            return _within_budget(candidates, candidates.lowering, candidate)
    except PassError as error:
        candidates.leave_out(error)
    return candidates.make()


def _within_budget(
    candidates: Candidates, lowering: CpuLowering, candidate: Candidate
) -> Candidate:
    work = candidates.work
    candidate = _fitted(candidates, lowering, candidate)
    if not lowering.has_lowered or foreign_note(candidate.library, work.options):
        return candidate
    from ortkit.runtime.timing.variants import Variant

    candidate = _fastest(candidates, lowering, candidate)
    plain = candidates.make(lowered=False)
    lower = Variant(work.saved(candidate), candidate.library)
    with work.stage("precision"):
        if lowering.pays(lower, Variant(work.saved(plain, "plain.onnx"), plain.library)):
            return candidate
    lowering.explain(plain.log)
    return plain


def _fitted(candidates: Candidates, lowering: CpuLowering, candidate: Candidate) -> Candidate:
    """Return a candidate in which what is lowered has kernels and fits the budget."""
    work = candidates.work
    with work.stage("precision"):
        while True:
            if lowering.return_unfused(candidate.model):
                candidate = candidates.make()
                continue
            error = lowering.measure(work.saved(candidate), work.runnable(candidate))
            if error <= lowering.max_error or not lowering.has_lowered:
                return candidate
            if not lowering.return_some(error):
                lowering.return_all()
            candidate = candidates.make()


def _fastest(candidates: Candidates, lowering: CpuLowering, candidate: Candidate) -> Candidate:
    """Return the fastest of the choices within the budget, as measured; it is lowered then."""
    from ortkit.runtime.timing.variants import Variant

    work, made = candidates.work, [(candidate, lowering.state)]
    for other in lowering.others:
        lowering.take(other)
        found = _fitted(candidates, lowering, candidates.make())
        if lowering.has_lowered:
            made.append((found, lowering.state))
        lowering.restore(made[0][1])
    if len(made) == 1:
        return candidate
    with work.stage("precision"):
        variants = [
            Variant(work.saved(one, f"choice{number}.onnx"), one.library)
            for number, (one, _) in enumerate(made)
        ]
        return made[lowering.settle(variants, [state for _, state in made])][0]

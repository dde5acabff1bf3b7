"""Verifying candidates against the source; rewrites that break one are rolled back, and named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ortkit.graph.io.open import open_model
from ortkit.isolation.group import ProcessGroup, ending
from ortkit.optimization.ahead import VerifierAhead, has_room
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import Candidates
from ortkit.optimization.kernel_stage import KernelStage
from ortkit.optimization.rollback import Attempt, roll_back
from ortkit.verify.fixed_batch import BatchVerifier, verifier_of
from ortkit.verify.kernels.report import KernelReport
from ortkit.verify.verification import Gap, Verification
from ortkit.verify.verifier import KernelsOf, Verifier

if TYPE_CHECKING:
    from ortkit.optimization.ahead import AnyVerifier


class VerifyStage:
    """Judges candidates against the source."""

    def __init__(self, candidates: Candidates) -> None:
        """Run nothing yet.

        Args:
            candidates: Makes the candidates; records what is rolled back.
        """
        self._candidates = candidates
        self._work = candidates.work
        self.kernels = KernelStage(candidates)
        self.verifiers = VerifierAhead(self._verifier)
        """A context manager, which ends the processes of the source."""

    def _verifier(self) -> Verifier | BatchVerifier:
        options, lowering = self._work.options, self._candidates.lowering
        return verifier_of(
            self._work.original(),
            samples=options.samples,
            coverage=options.coverage,
            inputs=options.inputs,
            shapes=options.shapes,
            seconds=options.verify_seconds,
            memory_mib=options.verify_memory,
            given=() if lowering is None else lowering.given,
            few=None if lowering is None else lowering.few,
            tolerance=options.tolerance,
            is_usual=options.precision != "fp32",
        )

    def begin(self) -> None:
        """Run the source, where that disturbs no measuring and needs no candidate."""
        if not self._work.options.measure and self._candidates.lowering is None and has_room():
            self.verifiers.begin()

    def verified(self, candidate: Candidate) -> tuple[Candidate, Verification]:
        """Check against the source; roll back the rewrites that break it, and name them.

        Each kernel is checked beside its body too: before the rest, or at the same time.
        """
        is_beside = has_room()
        if not is_beside:
            candidate = self.kernels.right(candidate)
        with self._work.stage("verify"), self.verifiers.verifier() as verifier:
            if is_beside:
                candidate, verification = self._checked_beside_kernels(verifier, candidate)
            else:
                verification = self._checked(verifier, candidate, self.kernels.report)
            if verification.verdict == "no":
                candidate, verification = self._rolled_back(verifier, candidate, verification)
        return candidate, self.kernels.with_gaps(verification)

    def _rolled_back(
        self, verifier: AnyVerifier, candidate: Candidate, verification: Verification
    ) -> tuple[Candidate, Verification]:
        """Return a candidate that is right, without the rewrites that break this one."""
        candidates, kernels = self._candidates, self.kernels
        everything = frozenset(hit.id for hit in candidate.log.hits)

        def attempt(denied: frozenset[str]) -> Attempt:
            made = candidates.make(denied, everything=everything)
            kernels.report = None
            if not denied >= everything:
                made = kernels.right(made, denied)
            checked = self._checked(verifier, made, kernels.report)
            return Attempt(made, checked, kernels.report)

        self._work.options.progress("find the breaking rewrite")
        source = partial(open_model, self._work.source)
        found = roll_back(Attempt(candidate, verification), attempt, source)
        candidates.rolled_back = (*candidates.rolled_back, *found.ids)
        kernels.report = found.best.kernels
        return found.best.candidate, found.best.verification

    def _checked_beside_kernels(
        self, verifier: AnyVerifier, candidate: Candidate
    ) -> tuple[Candidate, Verification]:
        """Judge a candidate while its kernels are checked.

        Returns:
            A candidate whose kernels are right, and its verification.
        """
        group = ProcessGroup()
        with ThreadPoolExecutor(1, "kernels") as pool, ending(group):
            check = partial(self.kernels.right, candidate, is_beside=True)
            checking = pool.submit(group.call, check)

            def kernels() -> KernelReport | None:
                checking.result()
                return self.kernels.report

            verification = self._checked(verifier, candidate, kernels)
            right = checking.result()
        if right is not candidate:  # a kernel was wrong
            verification = self._checked(verifier, right, self.kernels.report)
        return right, verification

    def _checked(
        self, verifier: AnyVerifier, candidate: Candidate, kernels: KernelsOf
    ) -> Verification:
        """Judge a candidate; in half precision also with every value rounded as on a GPU.

        Args:
            verifier: Has run the original.
            candidate: The model that is judged.
            kernels: What is known of each kernel beside its body.
        """
        library, precision = candidate.library, self._work.options.precision
        lowering = self._candidates.lowering
        check = partial(verifier.check, kernels=kernels, keeps_names=True)
        if lowering is not None or precision == "fp32":
            stated = 0.0 if lowering is None else lowering.max_error
            return check(candidate.model, library=library, stated=stated)
        from ortkit.precision.interface import lowered_names, with_float_interface
        from ortkit.precision.lower import HALF_DTYPES
        from ortkit.precision.rounding import rounding_model
        from ortkit.verify.kernels.gaps import bfloat16_gap

        model = with_float_interface(candidate.model, lowered_names(candidate.log.hits))
        half = HALF_DTYPES[precision]
        computed_in = half.numpy().name
        # The CPU provider has no bfloat16, and casts float16 back and forth without rounding.
        gaps: tuple[Gap, ...] = ()
        if precision == "fp16":
            found = check(model, library=library, computed_in=computed_in)
            if not found.is_good:
                return found
            gaps = found.not_compared
        elif library is not None:
            gaps = (bfloat16_gap(self._work.saved(candidate)),)
        found = check(rounding_model(model, half), computed_in=computed_in)
        return found.beside(gaps, f"every value rounded to {computed_in}")

"""Checking kernels: each beside its function body; the regions of wrong ones are put back."""

from __future__ import annotations

from contextlib import nullcontext

from ortkit.errors import CheckError
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import Candidates
from ortkit.verify.kernels.check import SECONDS, check_kernels
from ortkit.verify.kernels.report import KernelReport
from ortkit.verify.verification import Verification


class KernelStage:
    """Holds the kernels of candidates to what their bodies compute."""

    def __init__(self, candidates: Candidates) -> None:
        """Check nothing yet.

        Args:
            candidates: Makes the candidates; records which kernels are wrong.
        """
        self._candidates = candidates
        self.report: KernelReport | None = None
        """Of the latest candidate; None if nothing was checked."""

    def right(
        self,
        candidate: Candidate,
        denied: frozenset[str] = frozenset(),
        *,
        is_beside: bool = False,
    ) -> Candidate:
        """Return a candidate whose kernels are right: this one, or one made without wrong ones.

        Kernels for this CPU are run, kernels for CUDA on a GPU or by Triton's interpreter.

        Args:
            candidate: With kernels, or without any.
            denied: What was denied for it.
            is_beside: Whether that is part of another stage.

        Raises:
            CheckError: A kernel is wrong, and nothing puts its region back.
        """
        candidates, work = self._candidates, self._candidates.work
        coverage = work.options.coverage
        while True:
            self.report = None
            is_host = work.options.machine.traits.is_host
            # Whether there is a device for them the check itself finds out.
            library = work.runnable(candidate) if is_host else candidate.library
            if library is None:
                return candidate
            with nullcontext() if is_beside else work.stage("check kernels"):
                self.report = check_kernels(
                    candidate.model, library, seconds=SECONDS[coverage], interpret=coverage
                )
            failed = self.report.failed
            if not failed:
                return candidate
            wrong = {
                rewrite: row.reason
                for row in failed
                for rewrite in candidate.rewrites_of({row.op_type})
            }
            if not wrong.keys() - candidates.wrong_kernels.keys():
                raise CheckError(
                    f"the kernel {failed[0].op_type} is wrong: {failed[0].reason}",
                    where=work.name,
                    fix="report it with the model; --kernels off leaves kernels out",
                )
            candidates.wrong_kernels |= wrong
            candidate = candidates.make(denied)

    def with_gaps(self, verification: Verification) -> Verification:
        """Add the kernels that were not checked alone, and how many were."""
        if self.report is None or not self.report.rows:
            return verification
        return verification.beside(self.report.gaps, self.report.summary())

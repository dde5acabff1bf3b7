"""`--measure`: kernels that do not pay go, one by one and then together."""

from __future__ import annotations

from pathlib import Path

from ortkit.errors import UserError
from ortkit.measure.measurer import Measurer
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import Candidates
from ortkit.optimization.kernels import foreign_note
from ortkit.runtime.timing.variants import Variant
from ortkit.targets.cpu import native_level


class MeasureStage:
    """Times the regions of candidates, and results beside the source."""

    def __init__(self, candidates: Candidates) -> None:
        """Read the source.

        Args:
            candidates: Makes the candidates; records which kernels do not pay.
        """
        self._candidates = candidates
        self._work = candidates.work
        options = self._work.options
        with self._work.stage("measure"):
            self.measurer = Measurer(
                self._work.original(), options.inputs, options.shapes, options.threads,
                self._work.folder, options.progress,
            )  # fmt: skip

    def paying(self, candidate: Candidate) -> Candidate:
        """Time the regions of a candidate; without those that do not pay, if there are some.

        Raises:
            UserError: The kernels are for another machine.
        """
        options = self._work.options
        if foreign := foreign_note(candidate.library, options):
            raise UserError(foreign, where="--measure", fix="leave --measure or --cpu out")
        if candidate.library is None:
            return candidate
        with self._work.stage("measure"):
            level = native_level() if options.cpu == "native" else options.cpu
            saved, placed = self._work.saved(candidate), candidate.placed()
            dropped = self.measurer.choose(
                candidate.model, saved, candidate.library, level, placed
            )
        self._candidates.dropped = dropped
        return self._candidates.make() if dropped else candidate

    def confirms(self, candidate: Candidate) -> bool:
        """Compare the result with the source; False if kernels make it slower, and must go."""
        candidates = self._candidates
        if candidates.slow_kernels:
            return True  # what is left was timed beside them

        def plain() -> Path:
            return self._work.saved(candidates.make(kernels=False), "plain.onnx")

        result = Variant(self._work.saved(candidate), candidate.library)
        ids, ops = candidate.joint()
        together = ops if ids and candidate.placed() else frozenset()
        has_kernels = candidate.library is not None
        with self._work.stage("confirm"):
            kept = self.measurer.confirm(result, plain if has_kernels else None, together)
        if not kept and together:
            candidates.dropped |= ids
        elif not kept:
            candidates.slow_kernels = "with them the model is slower, as measured"
        return kept

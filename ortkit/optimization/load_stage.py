"""The last stage: a result that ONNX Runtime does not load is never written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import CheckError, InternalError, MissingDependencyError, RunError
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.candidates import Candidates
from ortkit.targets.traits import HOST_PROVIDER
from ortkit.verify.bisect import find_breaking_rewrites
from ortkit.verify.loads import Loads, try_to_load

if TYPE_CHECKING:
    from ortkit.verify.verification import Verification

LOADS = "yes"


class LoadStage:
    """Holds results to loading wherever their source does."""

    def __init__(self, candidates: Candidates) -> None:
        """Load nothing yet.

        Args:
            candidates: Makes the candidates; records which rewrites keep one from loading.
        """
        self._candidates = candidates
        self._work = candidates.work
        self.outcome = ""
        """Whether the latest candidate loads; see `Report.load_check`."""

    def loadable(self, candidate: Candidate, verification: Verification | None) -> Candidate:
        """Return a candidate that ONNX Runtime loads, without rewrites that keep it from that.

        Args:
            candidate: Returned if it loads.
            verification: Of the candidate, if it was verified.

        Raises:
            RunError: ONNX Runtime does not load the source.
            CheckError: It loads no result, not even one without rewrites.
        """
        is_verified = verification is not None and verification.is_good and verification.has_run
        if is_verified and not self._is_verified_in_other_form:
            self.outcome = LOADS
            return candidate
        is_suspect = verification is not None and not is_verified
        best = candidate

        def loads(attempt: Candidate) -> bool:
            nonlocal best
            path, library = self._work.saved(attempt), self._work.runnable(attempt)
            is_good, self.outcome = self._check(path, library, is_source_suspect=is_suspect)
            best = attempt if is_good else best
            return is_good

        ids = [hit.id for hit in candidate.log.hits]
        everything = frozenset(ids)

        def loads_without(denied: frozenset[str]) -> bool:
            return loads(self._candidates.make(denied, everything=everything))

        with self._work.stage("load"):
            if loads(candidate):
                return best
            self._work.options.progress("find the breaking rewrite")
            try:
                breaking = find_breaking_rewrites(ids, loads_without)
            except CheckError as error:
                raise CheckError(
                    f"no result loads in ONNX Runtime, with no rewrite either: {self.outcome}",
                    where=self._work.name,
                    fix="report it with the model; nothing was written",
                ) from error
            loads_without(frozenset(breaking))
            self._candidates.not_loading = (*self._candidates.not_loading, *breaking)
        return best

    @property
    def _is_verified_in_other_form(self) -> bool:
        """Whether what is verified is not the very model that is written."""
        return self._work.options.precision != "fp32" and self._candidates.lowering is None

    def _check(
        self, model: Path, library: Path | None, *, is_source_suspect: bool
    ) -> tuple[bool, str]:
        """Say whether a result may be written, and what is known of it.

        Args:
            model: The result.
            library: Its kernel library, if this machine runs it.
            is_source_suspect: Whether to load the source even if the result loads.

        Returns:
            False if a rewrite is to blame; and `yes`, why it does not load, or why it was not
            tried.

        Raises:
            RunError: ONNX Runtime does not load the source.
        """
        try:
            source = self._source() if is_source_suspect else None
            result = try_to_load(model, library)
            if result.is_good:
                return True, LOADS
            source = source or self._source()
        except (MissingDependencyError, InternalError) as error:
            # Without ONNX Runtime, or with one that cannot be imported.
            return True, f"not checked: {error.problem}"
        if source.problem and source.lacks_operators:
            return (
                True,
                f"not checked: ONNX Runtime here does not load the original: {source.problem}",
            )
        if result.covers(source):
            return True, LOADS
        if result.lacks_operators and self._is_for_others:
            return (
                True,
                f"not checked: ONNX Runtime's CPU provider does not load it: {result.problem}",
            )
        return False, result.problem

    @property
    def _is_for_others(self) -> bool:
        """Whether results may have operators that only other providers than the CPU's have."""
        options = self._work.options
        is_half = options.precision in ("fp16", "bf16", "fp8")
        return is_half or options.machine.traits.provider != HOST_PROVIDER

    def _source(self) -> Loads:
        found = try_to_load(self._work.original())
        if found.plain and found.deployed and not found.lacks_operators:
            raise RunError(
                f"ONNX Runtime does not load the model: {found.problem}",
                where=self._work.name,
                fix="mend or export it again; nothing was written",
            )
        return found

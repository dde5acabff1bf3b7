"""The results of a few rows, repeated to the whole batch, so that kernels run with all rows.

Each row is computed on its own, as was proved of the original. So what it gives for repeated rows
are its results, repeated, and only the candidate's kernels have to run with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.cut import Axes, Cut
from ortkit.graph.batch.row_order import row_order
from ortkit.refusal import Refused
from ortkit.runtime.ort import import_onnxruntime
from ortkit.verify.accuracy import Allowance
from ortkit.verify.compare import OutputComparison
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.judging import Judged
from ortkit.verify.kernels.library import Kernels, kernels_here
from ortkit.verify.perturbed.perturbation import RUNS
from ortkit.verify.perturbed.runs import PerturbedRuns
from ortkit.verify.reference import Reference, Request
from ortkit.verify.sessions import CandidateRun, SessionResult, run_within
from ortkit.verify.verifier import Verifier

_NAME = "repeated"


class RepeatedVerifier(Verifier):
    """Judges candidates on one input set of repeated rows, under deploy settings alone.

    Where this machine runs none of a candidate's kernels, it is not run either: its bodies were
    compared on the rows.
    """

    def __init__(
        self, original: Path | ir.Model, rows: Reference, cut: Cut, axes: Axes, **options: Any
    ) -> None:
        """Say what is repeated.

        Args:
            original: An ONNX file, or a model.
            rows: The results of the original for fewer rows.
            cut: That original.
            axes: As `row_axes` returns them.
            options: As for `Verifier`.
        """
        super().__init__(original, budget=rows.budget, **options)
        self._rows, self._axes = rows, axes
        self._numbers = row_order(cut.batch, cut.rows)
        self._times = cut.batch / cut.rows
        self.on_rows: tuple[OutputComparison, ...] = ()
        """What the comparison on the rows said of the outputs."""

    def _reference(self, request: Request, folder: Path) -> Reference | Refused:  # noqa: ARG002
        """Write the repeated rows of the first input set, and the results."""
        rows = self._rows
        given = rows.feeds[0]
        write_feeds(folder / "feeds" / _NAME, self._repeated(read_values(given)))
        write_feeds(folder / "plain" / _NAME, self._repeated(rows.expected(given)))
        if not rows.own_problem:
            deployed = read_values(rows.optimized / given.name)
            write_feeds(folder / "optimized" / _NAME, self._repeated(deployed))
        plain, optimized = (
            replace(session, seconds=session.seconds * self._times) for session in rows.sessions
        )
        return replace(
            rows,
            feeds=(folder / "feeds" / _NAME,),
            plain=folder / "plain",
            optimized=folder / "optimized",
            perturbed=_RepeatedRuns(rows.perturbed, given, self),
            sessions=(plain, optimized),
            late=(), unstable=(), about=rows.about[:1], dropped=(), notes=(), maker=None,
            mismatches=(),
        )  # fmt: skip

    def _run(self, state: Reference, candidate: CandidateRun) -> list[SessionResult]:
        """Run a candidate under deploy settings, if any of its kernels is run."""
        ran = SessionResult(state.inputs, state.outputs, is_loaded=True)
        here = self._kernels(candidate.library, candidate.ops)
        if len(candidate.ops) == sum(item["count"] for item in here.not_run):
            return [ran, replace(ran, not_run=tuple(here.not_run))]
        setting = candidate.deployed()
        (deployed,) = run_within(state.budget, [setting], state.feeds, len(state.feeds))
        return [replace(ran, inputs=deployed.inputs, outputs=deployed.outputs), deployed]

    def _judged(
        self,
        state: Reference,
        folder: Path,
        results: Sequence[SessionResult],
        allowance: Allowance,
    ) -> Judged:
        """Compare what was run; where nothing was, the rows have said what there is to say."""
        found = super()._judged(state, folder, results, allowance)
        if found.reason or any(each.done for each in results):
            return found
        names = {f"output {each.name!r}" for each in self.on_rows}
        gaps = tuple(gap for gap in found.gaps if gap.what not in names)
        return replace(found, outputs=self.on_rows, gaps=gaps)

    def _kernels(self, library: Path | None, ops: tuple[str, ...]) -> Kernels:
        if library is None:
            return Kernels("", (), ())
        return kernels_here(import_onnxruntime(), str(library.absolute()), ops)

    def _repeated(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {name: self._of_all_rows(name, value) for name, value in values.items()}

    def _of_all_rows(self, name: str, value: Value) -> Value:
        axis = self._axes.get(name)
        if axis is None or not isinstance(value, np.ndarray):
            return value
        return np.take(value, self._numbers, axis)


class _RepeatedRuns(PerturbedRuns):
    """Perturbed runs of the rows, repeated."""

    def __init__(self, rows: PerturbedRuns, given: Path, verifier: RepeatedVerifier) -> None:
        self._rows, self._given, self._verifier = rows, given, verifier
        self.is_late = rows.is_late

    def of(
        self,
        feeds: Path,  # noqa: ARG002
        unit: float = 0.0,
        count: int = RUNS,
    ) -> list[dict[str, Value]]:
        """Return the results of each run; there is one input set."""
        found = self._rows.of(self._given, unit, count)
        self.is_late = self._rows.is_late
        return [self._verifier._repeated(item) for item in found]

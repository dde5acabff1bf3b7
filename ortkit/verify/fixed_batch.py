"""Models with a fixed batch: verified on a few rows where each row is computed on its own.

The time of a verification does not grow with the batch then, but for kernels that are made for
it. These run once with all rows, beside what the original gave for few.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.batch.cut import Cut, cut_batch, fixed_batch, row_axes
from ortkit.graph.batch.place import Mixed
from ortkit.graph.io.open import open_model
from ortkit.verify.inputs.batch_rows import ROWS, ROWS_OF_LONG, FewRows, is_long, rows_of_sets
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.sets import InputSet
from ortkit.verify.reference import Request, input_sets
from ortkit.verify.repeated import RepeatedVerifier
from ortkit.verify.verification import Verification
from ortkit.verify.verifier import Verifier

#: A batch of as many rows takes no longer than the sets of a covering design.
_FEW_ROWS = 8
#: Input sets with all rows: where a few rows were compared, and where they cannot be and a run
#: takes long. A few rows that take long have as many.
_SETS_AFTER_ROWS, _SETS = 1, 2


def verifier_of(
    original: Path | ir.Model, *, few: FewRows | None = None, **options: Any
) -> Verifier | BatchVerifier:
    """Return what judges candidates by an original.

    Args:
        original: An ONNX file, or a model.
        few: Rows that stand for its batch, with the input sets to judge on. Inputs of `options` do
            not count then. None: rows are looked for here.
        options: As for `Verifier`.
    """
    model = original if isinstance(original, ir.Model) else open_model(original)
    if few is not None:
        return BatchVerifier(original, model, {**options, "inputs": None}, few)
    has_inputs = options.get("inputs") is not None or options.get("given")
    if has_inputs or not _has_many_rows(model, options):
        return Verifier(original, **options)
    return BatchVerifier(original, model, options)


class BatchVerifier:
    """Judges candidates by an original with a fixed batch; used as `Verifier` is."""

    def __init__(
        self,
        original: Path | ir.Model,
        model: ir.Model,
        options: dict[str, Any],
        few: FewRows | None = None,
    ) -> None:
        """Prove what can be proved of the original.

        Args:
            original: An ONNX file, or a model.
            model: The original.
            options: As for `Verifier`.
            few: As for `verifier_of`.
        """
        self._original = original
        self._options = options
        is_quick = options.get("coverage", "quick") == "quick"
        self._batch = fixed_batch(model)
        self._is_limited = is_quick and is_long(model, self._batch)
        # Few rows may take as long: then there are fewer of them, and as many input sets.
        has_long_rows = self._is_limited and is_long(model, ROWS)
        self._count = ROWS_OF_LONG if has_long_rows else ROWS
        self._sets = _SETS if has_long_rows else None
        self._inputs = _rows_of(model)
        self._given: tuple[InputSet | Feeds, ...] = ()
        if few is not None:
            self._count, self._given = few.cut.rows, few.sets
        found = cut_batch(model, self._count) if few is None else few.cut
        self._mixed = found.reason if isinstance(found, Mixed) else ""
        self._cut = found if isinstance(found, Cut) else None
        self._rows: Verifier | None = None
        self._whole: dict[int, Verifier] = {}
        self._axes = None if self._cut is None else row_axes(model, self._cut)
        self._repeated: RepeatedVerifier | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Run the original; see `Verifier.__enter__`."""
        try:
            if self._cut is not None:
                given = self._given or self._rows_of_sets(self._cut)
                rows = self._entered(given)
                if given and rows.refusal:
                    rows = self._entered(())
                self._rows = rows
                if rows.refusal:
                    self._rows, self._mixed = None, f"on {self._count} rows: {rows.refusal}"
            if self._rows is None:
                self._verifier(_SETS)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the temporary folders."""
        self._stack.close()

    def _entered(self, given: Sequence[InputSet | Feeds]) -> Verifier:
        """Return a verifier of a few rows that has run the original.

        Args:
            given: The input sets; some of a covering design if there are none.
        """
        assert self._cut is not None
        options = {**self._options, **({"given": given} if given else {})}
        rows = Verifier(self._cut.model, **options, most_sets=self._sets)
        return self._stack.enter_context(rows)

    def _rows_of_sets(self, cut: Cut) -> tuple[InputSet, ...]:
        """Return one input set whose rows are of different sets, if rows take long.

        None where the user says how many sets there are, or where it cannot be made.

        Args:
            cut: The original for a few rows.
        """
        options = self._options
        if self._sets is None or options.get("samples") or self._axes is None:
            return ()
        request = Request(
            cut.model, Path(), options.get("coverage", "quick"), shapes=options.get("shapes"),
            most_sets=cut.rows, is_usual=options.get("is_usual", False),
        )  # fmt: skip
        with suppress(ModelError):
            return rows_of_sets(cut, self._axes, input_sets(request).first)
        return ()

    def prepare(self) -> None:
        """See `Verifier.prepare`."""
        if self._rows is not None:
            self._rows.prepare()

    @property
    def refusal(self) -> str:
        """Why no candidate can be judged; empty if one can."""
        return (self._rows or self._verifier(_SETS)).refusal

    def check(
        self, candidate: Path | ir.Model, *, library: Path | None = None, **options: Any
    ) -> Verification:
        """Judge a candidate; see `Verifier.check`."""
        model = candidate if isinstance(candidate, ir.Model) else open_model(candidate)
        mixed, found = self._mixed, None
        if self._rows is not None:
            is_alike = _rows_of(model) == self._inputs
            cut = cut_batch(model, self._count) if is_alike else None
            if isinstance(cut, Cut):
                found = self._rows.check(cut.model, **options)
                if found.verdict == "not possible":
                    mixed, found = f"on {self._count} rows: {found.reason}", None
            else:
                mixed = f"the candidate: {cut.reason if cut else 'it has another batch'}"
        if found is None:
            return self._on_all_rows(candidate, mixed, library=library, **options)
        text = f"{self._batch} rows as {self._count}: each is computed on its own"
        found = replace(found, batch=text, has_run=False)
        if not found.is_good or library is None:
            return replace(found, reason=f"{found.reason}; {text}")
        all_rows = self._all_rows(self._rows)
        if isinstance(all_rows, RepeatedVerifier):
            all_rows.on_rows = found.outputs
        whole = all_rows.check(candidate, library=library, values=found.values, **options)
        remark = f"{text}, and kernels with all of them on {whole.samples} input set"
        return replace(
            whole.beside(found.not_compared, remark),
            batch=remark,
            samples=found.samples + whole.samples,
            input_sets=found.input_sets + whole.input_sets,
            dropped_sets=found.dropped_sets,
            seconds=found.seconds + whole.seconds,
        )

    def _on_all_rows(self, candidate: Path | ir.Model, mixed: str, **options: Any) -> Verification:
        found = self._verifier(_SETS).check(candidate, **options)
        fewer = f", {found.samples} input sets only" if self._is_limited else ""
        text = f"all {self._batch} rows{fewer}: {mixed}"
        return replace(found, reason=f"{found.reason}; {text}", batch=text)

    def _all_rows(self, rows: Verifier | None) -> Verifier:
        """Return what judges kernels with all rows, once few rows were compared."""
        state = None if rows is None else rows.reference
        if state is None or self._cut is None or self._axes is None:
            return self._verifier(_SETS_AFTER_ROWS)
        if self._repeated is None:
            made = RepeatedVerifier(self._original, state, self._cut, self._axes, **self._options)
            self._repeated = self._stack.enter_context(made)
        return self._repeated

    def _verifier(self, sets: int) -> Verifier:
        """Return a verifier with all rows, on a few input sets unless the user wants more."""
        if sets not in self._whole:
            whole = Verifier(
                self._original,
                **self._options,
                most_sets=sets if self._is_limited or sets == _SETS_AFTER_ROWS else None,
                budget=None if self._rows is None else self._rows.budget,
            )
            self._whole[sets] = self._stack.enter_context(whole)
        return self._whole[sets]


def _has_many_rows(model: ir.Model, options: dict[str, Any]) -> bool:
    """Say whether a run with all rows may take longer than one with a few."""
    batch, is_quick = fixed_batch(model), options.get("coverage", "quick") == "quick"
    if batch > _FEW_ROWS or batch <= ROWS_OF_LONG:
        return batch > _FEW_ROWS
    return is_quick and is_long(model, ROWS_OF_LONG)


def _rows_of(model: ir.Model) -> dict[str, object]:
    """Return how many rows each input has, by name."""
    inputs = (value for value in model.graph.inputs if not value.is_initializer())
    return {value.name or "": value.shape[0] if value.shape else None for value in inputs}

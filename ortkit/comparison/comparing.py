"""One comparison, straight down: find inputs, judge by the first model, run interleaved,
compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from ortkit.comparison.batches import BatchAxis, batch_axis
from ortkit.comparison.concurrency import measure_concurrency
from ortkit.comparison.differences import Judge
from ortkit.comparison.feeding import candidates, first_that_runs
from ortkit.comparison.first_node import first_node
from ortkit.comparison.result import BatchResult, Comparison
from ortkit.comparison.rows import Row, make_rows
from ortkit.comparison.verdicts import Evidence, skipped
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.measure.decoding import CachedDecoder, Phase
from ortkit.runtime.installation import Installation
from ortkit.runtime.machine import LoadWatch
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.settings import Optimizations, SessionSettings
from ortkit.runtime.workers.interleave import Samples, Schedule, run_interleaved
from ortkit.runtime.workers.planning import plan_session
from ortkit.temporary import TemporaryFolder
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.reference import Request, compute_reference

MOST_CALLERS = 256


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    providers: tuple[str, ...] = ("cpu",)
    threads: tuple[int, ...] = (0,)
    """Of a session; 0: ONNX Runtime decides."""
    batches: tuple[int, ...] = ()
    """Empty: the inputs' own."""
    inputs: Path | None = None
    """An npz file to run on; else inputs are made up."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    optimizations: tuple[str, ...] = ("all",)
    """ONNX Runtime's own."""
    schedule: Schedule = field(default_factory=Schedule)
    concurrency: tuple[int, ...] = ()
    """Numbers of run calls at a time that throughput is measured with."""
    onnxruntimes: tuple[Installation, ...] = ()
    """Empty: the installed one alone."""
    labels: tuple[str, ...] = ()
    """What reports call these."""
    phases: tuple[Phase, ...] = ()
    """Of decoders, in place of batches; all models are in `decoders` then."""
    decoders: Mapping[Path, CachedDecoder] = field(default_factory=dict)
    usual_threads: Mapping[Path, int] = field(default_factory=dict)
    """By model: of a session where `threads` is 0."""
    trust: bool = False
    """Whether kernel libraries of the models are loaded that were built elsewhere."""
    progress: Callable[[str], None] = _silent

    @property
    def has_variants(self) -> bool:
        """Whether one model alone makes more than one row."""
        several = (self.providers, self.threads, self.optimizations, self.onnxruntimes)
        return max(map(len, several)) > 1

    def __post_init__(self) -> None:
        """Check what can be checked without a model.

        Raises:
            UserError: Something makes no sense.
        """
        for level in self.optimizations:
            SessionSettings(optimizations=cast(Optimizations, level))
        for batch in self.batches:
            if batch < 1:
                raise UserError(f"a batch of {batch}", where="--batch", fix="give 1 or more")
        for callers in self.concurrency:
            if not 1 <= callers <= MOST_CALLERS:
                raise UserError(f"{callers} run calls at a time", where="--concurrency",
                                fix=f"give 1 to {MOST_CALLERS}")  # fmt: skip
        if self.batches and self.inputs is not None:
            raise UserError("the inputs given have a batch of their own", where="--batch",
                            fix="leave --batch or --inputs out")  # fmt: skip


def compare_models(models: Sequence[Path], options: CompareOptions | None = None) -> Comparison:
    """Run variants of one model side by side and compare what they take and give.

    Args:
        models: Files; the first is what the others are compared with.
        options: How variants are compared.

    Raises:
        ModelError: One is no valid model.
        RunError: The first does not run on any inputs.
        UserError: The inputs or sizes do not fit the first model, or a setting is not known.
        MissingDependencyError: ONNX Runtime, or a provider asked for, is not installed.
    """
    options = options or CompareOptions()
    started = time.perf_counter()
    rows = make_rows(
        models, options.providers, options.threads, options.optimizations, options.labels or ("",)
    )
    with TemporaryFolder("compare") as folder:
        subject = _Subject(rows, options, folder)
        with LoadWatch() as watch:
            batches = tuple(
                subject.on_phase(case) if isinstance(case, Phase) else subject.on_batch(case)
                for case in options.phases or options.batches or (None,)
            )
    return Comparison(
        batches, watch.found(), subject.version, subject.notes, time.perf_counter() - started
    )


class _Subject:
    """What is compared, opened and planned once for all batches."""

    def __init__(self, rows: Sequence[Row], options: CompareOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.version = ""
        options.progress("open the models")
        opened = {path: open_model(path) for path in dict.fromkeys(row.model for row in rows)}
        self.model = opened[rows[0].model]
        self.axes: dict[Path, BatchAxis] = {p: batch_axis(m) for p, m in opened.items()}
        self.random = random_outputs(self.model)
        self.plans = [self._plan(row) for row in rows]
        self.rows = [
            replace(row, function_bodies=plan.runs_bodies, threads=plan.settings.threads)
            for row, plan in zip(rows, self.plans, strict=True)
        ]
        self.notes = tuple(dict.fromkeys(note for plan in self.plans for note in plan.notes))

    def _plan(self, row: Row) -> SessionPlan:
        settings = SessionSettings(
            target=row.provider,
            threads=row.threads or self.options.usual_threads.get(row.model, 0),
            # A level that is none is refused there.
            optimizations=cast(Optimizations, row.optimizations),
            trust=self.options.trust,
        )

        def scratch() -> Path:
            made = self.folder / f"model{row.number}"
            made.mkdir(exist_ok=True)
            return made

        runtimes = dict(zip(self.options.labels, self.options.onnxruntimes, strict=True))
        plan = plan_session(row.model, settings, scratch, runtimes.get(row.onnxruntime))
        decoder = self.options.decoders.get(row.model)
        return plan if decoder is None else replace(plan, share=decoder.share)

    def on_phase(self, phase: Phase) -> BatchResult:
        """Compare all rows in one phase of generation."""
        decoder = self.options.decoders[self.rows[0].model]
        found = self._on_inputs(phase.slug, phase.new, decoder.feeds(phase), self._refusals(None))
        return replace(found, batch=None, phase=phase)

    def on_batch(self, batch: int | None) -> BatchResult:
        """Compare all rows on one set of inputs."""
        refusals = self._refusals(batch)
        if refusals[0]:
            rows = tuple(skipped(row, refusals[0]) for row in self.rows)
            return BatchResult(batch, {}, None, None, rows, ())
        name = "batch" if batch is None else f"batch{batch}"
        path = self.rows[0].model
        found = candidates(
            path, self.model, self.options.inputs, self.options.shapes, batch, self.axes[path]
        )
        return self._on_inputs(name, batch, found, refusals)

    def _on_inputs(
        self, name: str, items: int | None, found: Iterator[Feeds], refusals: Sequence[str]
    ) -> BatchResult:
        """Compare all rows on the first input set that the first row runs on.

        Args:
            name: Of the folder for what is written.
            items: What one run computes: images of a batch, or tokens.
            found: Input sets, the most wanted first.
            refusals: For each row why it is not run; empty if it is.
        """
        folder = self.folder / name
        folder.mkdir()
        self.options.progress(f"{name}: find inputs")
        timeout = self.options.schedule.timeout_seconds
        feeds, self.version = first_that_runs(found, self.plans[0], folder, timeout)
        self.options.progress(f"{name}: judge the first model")
        judge = self._judge(feeds, folder)
        samples = self._samples(name, folder, refusals)
        evidence = Evidence(
            self.rows,
            self.plans,
            items,
            feeds,
            folder,
            judge,
            samples,
            timeout,
        )
        result = self._with_concurrency(evidence.result(refusals), folder)
        return self._with_first_nodes(result, feeds)

    def _with_first_nodes(self, found: BatchResult, feeds: Feeds) -> BatchResult:
        """Add the first node that differs where two ONNX Runtimes do not give the same."""
        rows = []
        for result in found.rows:
            row = result.row
            other = self.rows[(row.against or 1) - 1]
            is_wanted = result.equality == "different" or bool(result.problem)
            if is_wanted and row.onnxruntime != other.onnxruntime:
                plans = self.plans[other.number - 1], self.plans[row.number - 1]
                names = f"ONNX Runtime {other.onnxruntime}", f"ONNX Runtime {row.onnxruntime}"
                self.options.progress(f"row {row.number}: find the first node that differs")
                first = first_node(plans, names, feeds, self.options.schedule.timeout_seconds)
                result = replace(result, first_node=first)
            rows.append(result)
        return replace(found, rows=tuple(rows))

    def _with_concurrency(self, found: BatchResult, folder: Path) -> BatchResult:
        """Add what the rows that ran do for several callers at a time."""
        options = self.options
        if not options.concurrency:
            return found
        ran = {row.row.number for row in found.rows if row.latency is not None}
        measured = measure_concurrency(
            {number: self.plans[number - 1] for number in sorted(ran)},
            folder / "feeds",
            options.concurrency,
            seconds=options.schedule.seconds,
            timeout_seconds=options.schedule.timeout_seconds,
            batch=found.batch,
            progress=options.progress,
        )
        rows = (replace(row, concurrency=measured.get(row.row.number, ())) for row in found.rows)
        return replace(found, rows=tuple(rows))

    def _refusals(self, batch: int | None) -> list[str]:
        """Return for each row why it is not run with this batch; empty if it is."""
        if batch is None:
            return ["" for _ in self.rows]
        return [self.axes[row.model].refusal(batch) for row in self.rows]

    def _judge(self, feeds: Feeds, folder: Path) -> Judge:
        if len(self.rows) == 1:
            return Judge(None, self.random)
        request = Request(
            self.model,
            self.plans[0].model,
            seconds=2 * self.options.schedule.timeout_seconds,
            custom_ops=self.plans[0].libraries,
            given=(feeds,),
        )
        return Judge.of(compute_reference(request, folder / "reference"), self.random)

    def _samples(self, name: str, folder: Path, refusals: Sequence[str]) -> dict[int, Samples]:
        """Return what each row took by its number, and as 0 what the first took once more."""
        numbers = [row.number for row, no in zip(self.rows, refusals, strict=True) if not no]
        elapsed = run_interleaved(
            [*(self.plans[number - 1] for number in numbers), self.plans[0]],
            folder / "feeds",
            self.options.schedule,
            arenas=True,
            results=[folder / f"results{number}" for number in (*numbers, 0)],
            progress=lambda what: self.options.progress(f"{name}: {what}"),
        )
        return dict(zip((*numbers, 0), elapsed, strict=True))

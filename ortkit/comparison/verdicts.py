"""Derive the verdict on each variant from its latencies and output differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ortkit.comparison import tf32
from ortkit.comparison.differences import Judge, OutputDifference, says_nothing
from ortkit.comparison.result import (
    BatchResult,
    Equality,
    RowResult,
    Spread,
    latency_of,
    memory_of,
)
from ortkit.comparison.rows import Row
from ortkit.errors import RunError
from ortkit.runtime.feeds import finite_problems
from ortkit.runtime.intervals import Speedup, noise_floor, speedup_of
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.workers.interleave import Samples
from ortkit.runtime.workers.worker import WorkerError
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Feeds


@dataclass(frozen=True)
class Evidence:
    """What is known of one batch."""

    rows: Sequence[Row]
    plans: Sequence[SessionPlan]
    """Of the rows."""
    batch: int | None
    feeds: Feeds
    folder: Path
    """With the inputs in `feeds` and the outputs of row N in `resultsN`, of the control in 0."""
    judge: Judge
    samples: Mapping[int, Samples]
    """By row; 0 is the control."""
    timeout_seconds: float

    def result(self, refusals: Sequence[str]) -> BatchResult:
        """Say what became of each row; `refusals` are why some were not run.

        Raises:
            RunError: The first does not run.
        """
        samples, random = self.samples, self.judge.random
        first, again = samples[1], samples[0]
        if first.problem:
            raise RunError(first.problem, where=str(self.rows[0].model))
        control = None if again.problem else speedup_of(first.rounds, again.rounds)
        rounds = [each.rounds for each in samples.values() if not each.problem]
        noise = np.inf if control is None else noise_floor(control, rounds)
        notes = [*finite_problems(self.feeds.items()), *self.judge.notes]
        if random:
            notes.append(f"random, so not compared: {', '.join(random)}")
        expected = read_values(self.folder / "results1")
        is_silent = says_nothing(expected, random)
        if is_silent and not random:
            notes.append("every output is empty, NaN or infinite: equality is not known")
        notes += _restless(self.judge, self.folder) if control is not None else []
        rows = []
        for row, refusal in zip(self.rows, refusals, strict=True):
            if refusal:
                rows.append(skipped(row, refusal))
                continue
            result = self._row(row, noise, notes)
            if is_silent and result.equality == "equal":
                result = replace(result, equality="not known")
            more = [name for name in _outputs(samples.get(row.number)) if name not in expected]
            if more:
                notes.append(f"row {row.number} has outputs that row 1 lacks: {', '.join(more)}")
            rows.append(result)
        shapes = {n: v.shape for n, v in self.feeds.items() if isinstance(v, np.ndarray)}
        floor = float(noise) if np.isfinite(noise) else None
        return BatchResult(self.batch, shapes, control, floor, tuple(rows), tuple(notes))

    def _row(self, row: Row, noise: float, notes: list[str]) -> RowResult:
        own = self.samples[row.number]
        if own.problem:
            return replace(skipped(row, own.problem), skipped=False)
        speedup: Speedup | None = None
        outputs: tuple[OutputDifference, ...] = ()
        equality: Equality | None = None
        if row.against is not None:
            other = self.samples.get(row.against)
            if other is None or other.problem:
                equality = "not known"
            else:
                speedup = speedup_of(other.rounds, own.rounds, floor=noise)
                pair = row.against, row.number
                outputs, note = self._differences(pair)
                notes += [note] if note else []
                equality = _equality(outputs)
        return RowResult(
            row,
            "",
            False,
            Spread.of([1e3 * each.seconds for each in own.loaded]),
            Spread.of([1e3 * each for each in own.first_seconds]),
            latency_of(own, self.batch),
            tuple(tuple(1e3 * each for each in rounds) for rounds in own.rounds),
            memory_of(own),
            own.loaded[0].nodes or dict.fromkeys(own.loaded[0].providers),
            own.is_warm,
            speedup,
            outputs,
            equality,
        )

    def _differences(self, pair: tuple[int, int]) -> tuple[tuple[OutputDifference, ...], str]:
        """Compare two rows' outputs, without TF32 if they differ with it; and say so."""
        folder, judge = self.folder, self.judge
        found = judge.compare(*(read_values(folder / f"results{row}") for row in pair))
        in_tf32 = [row for row in pair if tf32.uses_tf32(self.plans[row - 1])]
        if not in_tf32 or all(each.judged.equal for each in found):
            return found, ""
        paths = [folder / f"results{row}" for row in pair]
        try:
            for index, row in enumerate(pair):
                if row in in_tf32:
                    paths[index] = folder / f"exact{row}"
                    if not paths[index].exists():
                        plan, feeds = self.plans[row - 1], folder / "feeds"
                        tf32.keep_exact(plan, feeds, paths[index], self.timeout_seconds)
        except WorkerError as error:
            return found, f"row {pair[1]}: not run without TF32: {error}"
        worst = max(each.judged.max_error_eps for each in found)
        rows = " and ".join(map(str, in_tf32))
        return judge.compare(*map(read_values, paths)), (
            f"row {rows}: float32 products are in TF32 (ONNX Runtime's default on CUDA), which "
            f"makes outputs differ by {worst:.4g} epsilons; they are compared without it"
        )


def _equality(outputs: Sequence[OutputDifference]) -> Equality:
    """Take outputs together; an error where the model is ill-conditioned proves nothing."""
    if any(not each.judged.equal for each in outputs):
        return "different"
    return "not known" if any(each.judged.is_inconclusive for each in outputs) else "equal"


def skipped(row: Row, problem: str) -> RowResult:
    """Return what there is to say of a row that did not run."""
    return RowResult(row, problem, True, None, None, None, (), None, {}, True, None, (), None)


def _outputs(samples: Samples | None) -> tuple[str, ...]:
    return samples.loaded[0].outputs if samples is not None and samples.loaded else ()


def _restless(judge: Judge, folder: Path) -> list[str]:
    """Say which outputs the first variant itself does not give twice alike."""
    found = judge.compare(read_values(folder / "results1"), read_values(folder / "results0"))
    return [
        f"output {each.judged.name!r} of row 1 differs between two of its own runs, by "
        f"{each.judged.max_error_eps:.3g} epsilons"
        for each in found
        if each.distance is not None and each.distance.unequal
    ]

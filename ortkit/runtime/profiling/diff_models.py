"""Two models profiled interleaved and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import RunError, UserError
from ortkit.graph.analysis.provenance import align
from ortkit.graph.io.open import open_model
from ortkit.graph.io.ort_dump import read_written
from ortkit.runtime.intervals import FEWEST_ROUNDS, median_of, noise_floor, speedup_of
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.profiling.context import Joined
from ortkit.runtime.profiling.diff import ProfileDiff, diff_profiles
from ortkit.runtime.profiling.diff_rounds import Traced, trace_interleaved
from ortkit.runtime.profiling.diff_sides import side_of_traces
from ortkit.runtime.profiling.joining import joined_of
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers.interleave import Samples, Schedule, run_interleaved
from ortkit.runtime.workers.planning import plan_session

_LEAST_RUNS = 6


def _silent(what: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class DiffOptions:
    """How two models are profiled."""

    settings: SessionSettings = field(default_factory=SessionSettings)
    runs: int = 60
    """Traced runs of each that count, over all processes."""
    seconds: float = 3.0
    """Of runs without tracing that count, for each."""
    processes: int = 2
    """How many times each session is created: where its memory comes to lie differs."""
    timeout_seconds: float = 600.0
    progress: Callable[[str], None] = _silent

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UserError: One makes no sense.
        """
        if self.runs < _LEAST_RUNS:
            raise UserError(f"{self.runs} runs are too few", where="--runs",
                            fix=f"give {_LEAST_RUNS} or more")  # fmt: skip


def plan_of(model: Path, options: DiffOptions, folder: Path) -> SessionPlan:
    """Return the session of one of the models.

    Raises:
        ModelError: There is no such model, or it is none.
        MissingDependencyError: ONNX Runtime, or a provider asked for, is not installed.
        UserError: A setting is not known.
    """

    def scratch() -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return plan_session(model, options.settings, scratch)


def diff_models(
    models: tuple[Path, Path],
    plans: tuple[SessionPlan, SessionPlan],
    feeds: Path,
    folder: Path,
    options: DiffOptions,
) -> ProfileDiff:
    """Profile two models interleaved and compare them.

    Args:
        models: A and B, as the user named them.
        plans: Their sessions.
        feeds: Inputs of both: a folder of tensors or an npz file.
        folder: For what is written meanwhile.
        options: Settings of both sessions, and how many runs are traced.

    Raises:
        ModelError: One is no valid model.
        RunError: One of them does not load or run.
    """
    first, second = (open_model(path) for path in models)
    samples = _whole_runs(models, plans, feeds, options)
    control = speedup_of(samples[0].rounds, samples[2].rounds)
    speedup = speedup_of(samples[0].rounds, samples[1].rounds, floor=noise_floor(control))
    traced = trace_interleaved(
        plans, feeds, folder, runs=options.runs, processes=options.processes,
        timeout_seconds=options.timeout_seconds, progress=options.progress,
    )  # fmt: skip
    options.progress("compare")
    opened = first, second
    sides = [
        side_of_traces(traced[at], _joined(traced[at][0], opened[at]), str(models[at]),
                       _run_us(samples[at]))
        for at in (0, 1)
    ]  # fmt: skip
    notes = dict.fromkeys([*plans[0].notes, *plans[1].notes])
    notes |= {
        f"{path}: ONNX Runtime cannot write the graph that it runs; its nodes are matched by "
        "their names": None
        for path, traces in zip(models, traced, strict=True)
        if traces[0].graph is None
    }
    return diff_profiles(
        sides[0], sides[1], speedup, align(first, second), in_turns=True, notes=tuple(notes)
    )


def _whole_runs(
    models: tuple[Path, Path],
    plans: tuple[SessionPlan, SessionPlan],
    feeds: Path,
    options: DiffOptions,
) -> list[Samples]:
    """Time A, B and A once more, without tracing: what A differs from itself by is noise."""
    rounds = 0
    while True:
        schedule = Schedule(options.seconds, rounds, options.processes, options.timeout_seconds)
        samples = run_interleaved([*plans, plans[0]], feeds, schedule, progress=options.progress)
        for sample, path in zip(samples, (*models, models[0]), strict=True):
            if sample.problem:
                raise RunError(sample.problem, where=str(path))
        # Where a run takes long, the time is over before there are enough for an interval.
        if rounds or sum(map(len, samples[0].rounds)) >= FEWEST_ROUNDS:
            return samples
        rounds = -(-FEWEST_ROUNDS // options.processes)


def _joined(traced: Traced, model: ir.Model) -> Joined | None:
    if traced.graph is None:
        return None
    return joined_of(traced.trace.nodes, read_written(traced.graph), model)


def _run_us(samples: Samples) -> Mapping[str, float | None]:
    found = dataclasses.asdict(median_of(samples.rounds))
    scaled = {name: found[name] for name in ("value", "low", "high")}
    median, low, high = (None if item is None else 1e6 * item for item in scaled.values())
    return {"median": median, "low": low, "high": high}

"""Profiling a model: traced runs, then runs of the same session without tracing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ortkit.errors import RunError, UserError
from ortkit.graph.io.open import ModelSource
from ortkit.runtime.profiling.about import threads_of
from ortkit.runtime.profiling.peaks import Peaks, threads_for
from ortkit.runtime.profiling.recording import TracedSession, finished
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.session import Session
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import Saveable

#: By default as many runs as fit into this, within bounds.
_SECONDS = 2.0
_LEAST_RUNS, _MOST_RUNS = 10, 100
#: After tracing has ended; measured: the session then is as fast as one that never traced.
_SETTLING = 2


@dataclass(frozen=True)
class RunPlan:
    """How often a model is run."""

    runs: int | None = None
    """Traced runs that count; None: as many as fit into two seconds, 10 to 100."""
    warmup: int = 3
    share: Mapping[str, str] = field(default_factory=dict)
    """Inputs in whose memory runs write outputs, see `Session.bind`."""

    def __post_init__(self) -> None:
        if self.runs is not None and self.runs < 1:
            raise UserError(f"{self.runs} runs show nothing", where="--runs", fix="give 1 or more")
        if self.warmup < 0:
            raise UserError(
                f"{self.warmup} runs cannot be left out", where="--warmup", fix="give 0 or more"
            )


def _silent(stage: str) -> None:
    """Ignore progress."""


def profile_model(
    model: ModelSource | Saveable,
    feeds: Iterable[Mapping[str, object]],
    settings: SessionSettings | None = None,
    plan: RunPlan | None = None,
    *,
    peaks_of: Callable[[str, int], tuple[Peaks | None, str]] | None = None,
    progress: Callable[[str], None] = _silent,
) -> Profile:
    """Profile a model on the first of some inputs that it runs on.

    Args:
        model: As `Session` takes it.
        feeds: Sets of inputs, the most wanted first.
        settings: Of the session.
        plan: How often it is run.
        peaks_of: Gives the machine's peaks for a provider and a number of threads, and what
            there is to say; by default those that were measured before, if any.
        progress: Is told of each stage.

    Raises:
        What `Session` raises.
        RunError: The model runs on none of the inputs.
    """
    known, wanted = settings or SessionSettings(), plan or RunPlan()

    def load(**changed: object) -> Session:
        return Session.with_settings(model, replace(known, **changed))  # type: ignore[arg-type]

    progress("load")
    traced = TracedSession(load, known.config, provenance=True)
    try:
        progress("run")
        chosen, run = _first_that_runs(traced.session, feeds, wanted.share)
        runs, seconds = _counted(run, wanted)
        trace = traced.end()
        plain_us = _plain(run, runs, seconds)
        provider = traced.session.providers[0]
        peaks = None
        if peaks_of is not None:
            peaks, said = peaks_of(provider, threads_for(provider, threads_of(trace)))
            traced.notes.extend([said] if said else [])
        progress("join with the model")
        return finished(
            traced,
            trace,
            warmup=len(trace.runs) - runs,
            plain_us=plain_us,
            feeds=chosen,
            peaks=peaks,
        )
    finally:
        traced.close()


def _first_that_runs(
    session: Session, feeds: Iterable[Mapping[str, object]], share: Mapping[str, str]
) -> tuple[Mapping[str, object], Callable[[], object]]:
    """Return inputs that the session runs on, and what runs it on them."""
    problem: RunError | None = None
    for each in feeds:
        run = session.bind(each, share=share).run if share else partial(session.run, each)
        try:
            run()
        except RunError as error:  # the next inputs may do
            problem = problem or error
            continue
        return each, run
    raise problem or RunError("there are no inputs to run on")


def _counted(run: Callable[[], object], plan: RunPlan) -> tuple[int, float]:
    """Run as often as is wanted; return how many runs count, and the seconds that they took."""
    for _ in range(plan.warmup):
        run()
    started = time.perf_counter()
    until = started + _SECONDS
    count = 0
    while count < (plan.runs or _LEAST_RUNS) or (
        plan.runs is None and count < _MOST_RUNS and time.perf_counter() < until
    ):
        run()
        count += 1
    return count, time.perf_counter() - started


def _plain(run: Callable[[], object], runs: int, seconds: float) -> list[float]:
    """Return the microseconds of runs without tracing, in no more time than those with it."""
    for _ in range(_SETTLING):
        run()
    elapsed: list[float] = []
    until = time.perf_counter() + seconds
    while not elapsed or (len(elapsed) < runs and time.perf_counter() < until):
        started = time.perf_counter()
        run()
        elapsed.append(1e6 * (time.perf_counter() - started))
    return elapsed

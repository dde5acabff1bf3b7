"""Chains of equal nodes timed in a process of their own; see `calibrate.py`.

All sessions of a job are made at once and run interleaved: what disturbs one disturbs all. Only
the fastest run of each counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import preload_onnxruntime
from ortkit.runtime.rounds import fastest_run, interleaved
from ortkit.runtime.settings import SessionSettings

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime

#: Of one session's runs, one after the other.
_TURN_SECONDS = 0.01
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 1000


@dataclass(frozen=True)
class Chain:
    """A model with one input `x0`, float32 [points], in a session of its own."""

    model: Path
    library: Path | None
    points: int
    threads: int = 1


@dataclass(frozen=True)
class ChainsJob:
    """Chains that are timed side by side."""

    chains: tuple[Chain, ...]
    seconds: float
    """For the runs of all chains together."""


def fastest_runs(job: ChainsJob) -> tuple[float, ...]:
    """Return the seconds of each chain's fastest run."""
    import onnxruntime as ort

    turns = []
    for chain in job.chains:
        settings = SessionSettings(threads=chain.threads)
        libraries = () if chain.library is None else (chain.library,)
        session = open_session(ort, SessionPlan(chain.model, libraries, settings=settings))
        feeds = {"x0": np.full(chain.points, 0.5, np.float32)}
        turns.append(partial(fastest_run, partial(session.run, None, feeds), _TURN_SECONDS))
    until = time.perf_counter() + job.seconds
    elapsed = interleaved(turns, _MOST_ROUNDS, least=_LEAST_ROUNDS, until=until)
    return tuple(map(min, elapsed))

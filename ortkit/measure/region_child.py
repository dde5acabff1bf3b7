"""Regions timed in a process of their own, which has nothing else imported; see `regions.py`.

Each turn has a session of its own, because where a session puts its buffers is decided once, and
differs from session to session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import preload_onnxruntime
from ortkit.runtime.rounds import fastest_run, interleaved, there_and_back
from ortkit.runtime.settings import SessionSettings

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime

_TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip


@dataclass(frozen=True)
class CasesJob:
    """Small models, each to be timed with and without the library."""

    models: tuple[Path, ...]
    library: Path
    threads: int
    """0: ONNX Runtime decides."""
    rounds: int
    seconds: float
    """Of one turn."""


@dataclass(frozen=True)
class CaseTimes:
    """Of one model the seconds of the fastest run of each turn; `problem` is empty if there."""

    body: tuple[float, ...] = ()
    kernel: tuple[float, ...] = ()
    problem: str = ""


def time_cases(job: CasesJob, tell: Callable[[CaseTimes], None]) -> None:
    """Time one model after the other."""
    for model in job.models:
        try:
            tell(_timed(model, job))
        except Exception as error:  # noqa: BLE001  whatever stops a session is the result
            tell(CaseTimes(problem=" ".join(str(error).split()) or type(error).__name__))


def _timed(model: Path, job: CasesJob) -> CaseTimes:
    settings = SessionSettings(threads=job.threads)
    body = SessionPlan(model, settings=settings)
    kernel = SessionPlan(model, (job.library,), settings=settings)
    turns = [partial(_turn, plan, job.seconds) for plan in (body, kernel)]
    bodies, kernels = interleaved(turns, job.rounds, order=there_and_back)
    return CaseTimes(tuple(bodies), tuple(kernels))


def _turn(plan: SessionPlan, seconds: float) -> float:
    """Return the fastest of some runs of a new session."""
    import onnxruntime as ort

    session = open_session(ort, plan)
    binding = _binding(session)
    return fastest_run(lambda: session.run_with_iobinding(binding), seconds)


def _binding(session: Any) -> Any:
    """Bind inputs, and outputs of the shapes that a first run has."""
    import onnxruntime as ort

    feeds = {item.name: _input(item, seed) for seed, item in enumerate(session.get_inputs())}
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(value))
    return binding


def _input(described: Any, seed: int) -> np.ndarray:
    name = described.type.removeprefix("tensor(").removesuffix(")")
    if name not in _TYPES:
        raise ValueError(f"inputs of type {name} cannot be made here")
    return made_up(np.dtype(_TYPES[name]), described.shape, seed)


def made_up(dtype: np.dtype[Any], shape: Sequence[int], seed: int) -> np.ndarray:
    """Return numbers that no operator trips over: between 0.5 and 1, or 0 and 1."""
    random = np.random.default_rng(seed)
    if dtype.kind in "biu":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    return np.asarray(random.uniform(0.5, 1.0, shape)).astype(dtype)

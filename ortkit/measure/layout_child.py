"""What layouts are compared on, run in a process of its own that leaves ONNX Runtime's traces.

All variants of a node are loaded at once and run interleaved, so that what disturbs one disturbs
all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortkit.errors import OrtkitError
from ortkit.runtime.memory.point_child import read_feeds
from ortkit.runtime.native_library import NotAvailableError
from ortkit.runtime.ort import import_onnxruntime, preload_onnxruntime
from ortkit.runtime.profiling.trace.devices import attach_kernels
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.rounds import interleaved
from ortkit.runtime.session import Session
from ortkit.runtime.targets import CUDA

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime

if TYPE_CHECKING:
    from ortkit.runtime.profiling.cuda_activity import CudaActivity

#: Runs at the begin of each trace that do not count.
WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 8, 200


@dataclass(frozen=True)
class TracedVariant:
    """One model, the arguments of its `Session`, and the start of its trace's name."""

    model: Path
    settings: Mapping[str, Any]
    trace: Path


@dataclass(frozen=True)
class LayoutsJob:
    """Models with the same inputs: a folder of tensors; `seconds` are those of each variant."""

    variants: tuple[TracedVariant, ...]
    feeds: Path
    seconds: float


@dataclass(frozen=True)
class Ran:
    """What came of a variant: the trace, or the problem."""

    trace: Path | None = None
    problem: str = ""
    device: tuple[tuple[int, str, float], ...] = ()
    """Run, operator and microseconds of kernels on a GPU."""
    no_device: str = ""
    """Why there are none although it ran on one."""


def run_variants(job: LayoutsJob) -> list[Ran]:
    """Run all variants interleaved."""
    feeds = read_feeds(import_onnxruntime(), job.feeds)
    ran = [Ran() for _ in job.variants]
    with ExitStack() as opened:
        sessions: dict[int, Session] = {}
        for index, variant in enumerate(job.variants):
            try:
                settings = {**variant.settings, "trace_prefix": str(variant.trace)}
                session = opened.enter_context(
                    Session(str(variant.model), spinning=False, **settings)
                )
                for _ in range(WARM_UP):
                    session.run(feeds)
                sessions[index] = session
            except OrtkitError as error:
                ran[index] = Ran(problem=error.problem)
        on_device = any(CUDA in session.providers for session in sessions.values())
        activity, reason = _recording() if on_device else (None, "")
        try:
            until = time.perf_counter() + job.seconds * len(sessions)
            turns = [partial(session.run, feeds) for session in sessions.values()]
            interleaved(turns, _MOST_RUNS, least=_LEAST_RUNS, until=until)
        finally:
            if activity is not None:
                activity.__exit__(None, None, None)
        for index, session in sessions.items():
            since = session.onnxruntime.get_profiling_start_time_ns()
            trace = Path(session.onnxruntime.end_profiling())
            device = () if activity is None else tuple(_kernels(trace, activity, since))
            ran[index] = Ran(trace, device=device, no_device=reason)
    return ran


def _recording() -> tuple[CudaActivity | None, str]:
    """Begin to record a GPU's kernels, or return why that cannot be done.

    ONNX Runtime's trace has of CUDA nodes only what the host does to launch them.
    """
    from ortkit.runtime.profiling.cuda_activity import CudaActivity

    try:
        return CudaActivity().__enter__(), ""
    except NotAvailableError as error:
        return None, str(error)


def _kernels(path: Path, activity: CudaActivity, since: int) -> Iterator[tuple[int, str, float]]:
    """Yield the kernels that this session's nodes launched, and no other session's."""
    trace = read_trace(path)
    trace = attach_kernels(trace, activity.events(since))
    ops = [trace.nodes.signatures[index].op for index in trace.nodes.signature]
    for kernel in trace.kernels:
        if kernel.node >= 0 and kernel.run >= 0:
            yield kernel.run, ops[kernel.node], kernel.duration_us

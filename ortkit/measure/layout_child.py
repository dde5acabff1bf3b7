"""The process that runs what layouts are compared on, and leaves ONNX Runtime's traces.

All variants of a node are loaded at once and run interleaved, so that what disturbs one disturbs
all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ortkit.errors import OrtkitError
from ortkit.runtime.memory.point_child import read_feeds
from ortkit.runtime.native_library import NotAvailableError
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.profiling.devices import joined
from ortkit.runtime.profiling.trace import read_trace
from ortkit.runtime.session import Session
from ortkit.runtime.targets import CUDA

if TYPE_CHECKING:
    from ortkit.runtime.profiling.cuda_activity import CudaActivity

#: Runs at the begin of each trace that do not count.
WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 8, 200


class Variant(TypedDict):
    """One model, how to load it, and where its trace goes."""

    model: str
    settings: dict[str, Any]
    trace: str  # start of a file's name


class Job(TypedDict):
    """Models with the same inputs."""

    variants: list[Variant]
    feeds: str  # a folder of tensors
    seconds: float  # for each variant
    result: str


class Ran(TypedDict):
    """What came of a variant: the trace, or the problem."""

    trace: str
    problem: str
    device: list[tuple[int, str, float]]  # run, operator and microseconds of kernels on a GPU
    no_device: str  # why there are none although it ran on one


def main(job_file: str) -> None:
    """Run a job and write its result."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(_run(job)), encoding="utf-8")


def _run(job: Job) -> list[Ran]:
    feeds = read_feeds(import_onnxruntime(), Path(job["feeds"]))
    ran: list[Ran] = [
        {"trace": "", "problem": "", "device": [], "no_device": ""} for _ in job["variants"]
    ]
    with ExitStack() as opened:
        sessions: dict[int, Session] = {}
        for place, variant in enumerate(job["variants"]):
            try:
                settings = {**variant["settings"], "trace_prefix": variant["trace"]}
                session = opened.enter_context(
                    Session(variant["model"], spinning=False, **settings)
                )
                for _ in range(WARM_UP):
                    session.run(feeds)
                sessions[place] = session
            except OrtkitError as error:
                ran[place]["problem"] = error.problem
        on_device = any(CUDA in session.providers for session in sessions.values())
        activity, reason = _recording() if on_device else (None, "")
        try:
            _rounds(sessions, feeds, job["seconds"] * len(sessions))
        finally:
            if activity is not None:
                activity.__exit__(None, None, None)
        for place, session in sessions.items():
            since = session.onnxruntime.get_profiling_start_time_ns()
            ran[place]["trace"] = str(session.onnxruntime.end_profiling())
            ran[place]["no_device"] = reason
            if activity is not None:
                ran[place]["device"] = list(_kernels(ran[place]["trace"], activity, since))
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


def _kernels(path: str, activity: CudaActivity, since: int) -> Iterator[tuple[int, str, float]]:
    """Yield the kernels that this session's nodes launched, and no other session's."""
    trace = read_trace(Path(path))
    trace = joined(trace, activity.events(since))
    ops = [trace.nodes.signatures[place].op for place in trace.nodes.signature]
    for kernel in trace.kernels:
        if kernel.node >= 0 and kernel.run >= 0:
            yield kernel.run, ops[kernel.node], kernel.duration_us


def _rounds(sessions: dict[int, Session], feeds: dict[str, Any], seconds: float) -> None:
    until = time.perf_counter() + seconds
    for number in range(_MOST_RUNS):
        if number >= _LEAST_RUNS and time.perf_counter() > until:
            break
        for session in sessions.values():
            session.run(feeds)

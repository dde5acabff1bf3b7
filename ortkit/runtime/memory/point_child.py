"""A model loaded and run in a process of its own, and what memory each of the two took.

Of its own, because neither ONNX Runtime's counters nor the system's peaks start again with a
second session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ortkit.errors import OrtkitError, RunError
from ortkit.runtime.memory.process import ProcessMemory, process_memory, reset_peak
from ortkit.runtime.memory.report import MemoryReport, report_of
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.session import Session
from ortkit.runtime.tensor_files import (
    PLAIN_TYPES,
    STRING_TYPE,
    ort_value,
    plain_array,
    read_manifest,
)

_MOST_RUNS = 1000
_PROVIDERS = {"Cpu": "CPUExecutionProvider", "Cuda": "CUDAExecutionProvider"}
#: With these a graph that was optimized is saved without its weights in the protobuf.
SAVED_WEIGHTS = "session.optimized_model_external_initializers_file_name"


class NotLoadedError(RunError):
    """The session could not be made, so that no other inputs would do."""


@dataclass(frozen=True)
class PointPlan:
    """What to load and to run.

    Args:
        model: A model file.
        feeds: A folder of tensors.
        settings: Arguments of `Session`, in addition to the model.
        arena: Of a CPU arena that the sessions share, as `OrtArenaCfg` takes it; none: each has
            its own.
        run_config: Entries of the run options.
        share: Inputs in whose memory runs write outputs, see `Session.bind`.
        sessions: How many to load side by side.
        seconds: How long to run after the first run.
        nodes: Whether to trace a run for what each node takes.
        timeout_seconds: When to give up.
    """

    model: Path
    feeds: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    arena: Mapping[str, int] = field(default_factory=dict)
    run_config: Mapping[str, str] = field(default_factory=dict)
    share: Mapping[str, str] = field(default_factory=dict)
    sessions: int = 1
    seconds: float = 0.5
    nodes: bool = False
    timeout_seconds: float = 600.0


@dataclass(frozen=True)
class PointJob:
    """A plan, and a folder for the trace of a further session; None for none."""

    plan: PointPlan
    trace: Path | None = None


@dataclass(frozen=True)
class Stages:
    """What was measured; reports are by session. `Point` describes the fields."""

    before: ProcessMemory
    peak_is_reset: bool
    load_seconds: float
    loaded: tuple[MemoryReport, ...]
    notes: tuple[str, ...]
    first_seconds: float
    output_bytes: int
    first: tuple[MemoryReport, ...]
    run_seconds: tuple[float, ...]
    last: tuple[MemoryReport, ...]
    trace: Mapping[str, Any] | None
    """What `read_node_memory` takes."""


def measure_stages(job: PointJob) -> Stages:
    """Load and run.

    Raises:
        NotLoadedError: The model does not load.
        RunError: It does not run.
    """
    plan = job.plan
    ort = import_onnxruntime()
    with ExitStack() as opened:
        with _explained(NotLoadedError, plan.model):
            feeds = read_feeds(ort, plan.feeds)
            if plan.arena:
                _make_shared_arena(ort, plan.arena)
            _warm_up_reading(plan)
            peak_is_reset = reset_peak()
            before = process_memory()
            started = time.perf_counter()
            sessions = [
                opened.enter_context(Session(str(plan.model), **plan.settings))
                for _ in range(plan.sessions)
            ]
            load_seconds = time.perf_counter() - started
        with _explained(RunError, plan.model):
            loaded = _reports(sessions)
            runs = [_runner(ort, session, feeds, plan) for session in sessions]
            reset_peak()
            elapsed = [_timed(run) for run in runs]
            first = _reports(sessions)
            reset_peak()
            run_seconds = _repeated(runs, plan.seconds)
            last = _reports(sessions)
            notes = sessions[0].notes
    with _explained(RunError, plan.model):
        trace = None if job.trace is None else _traced(plan, job.trace, feeds)
    return Stages(
        before, peak_is_reset, load_seconds, loaded, tuple(notes), *elapsed[0], first,
        tuple(run_seconds), last, trace,
    )  # fmt: skip


@contextmanager
def _explained(kind: type[RunError], model: Path) -> Iterator[None]:
    """Raise whatever stops the block as an error of this kind."""
    try:
        yield
    except OrtkitError as error:
        raise kind(error.problem, where=error.where or str(model), fix=error.fix) from error
    except Exception as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise kind(problem, where=str(model)) from error


def _warm_up_reading(plan: PointPlan) -> None:
    """Read a report once, so that what that itself takes does not count as the session's."""
    import onnx.parser

    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Neg (x) }'
    )
    tiny = onnx.parser.parse_model(text)
    settings = {key: plan.settings[key] for key in ("target",) if key in plan.settings}
    # With the same target: a device's libraries and context are not the model's either.
    with Session(tiny, **settings, fallback=True) as session:
        report_of(session)


def _make_shared_arena(ort: ModuleType, config: Mapping[str, int]) -> None:
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(dict(config)))


def _reports(sessions: list[Session]) -> tuple[MemoryReport, ...]:
    return tuple(report_of(session) for session in sessions)


def _runner(
    ort: ModuleType, session: Session, feeds: Mapping[str, Any], plan: PointPlan
) -> Callable[[], Any]:
    if plan.share:
        return session.bind(feeds, share=plan.share).run
    if not (config := plan.run_config):
        return lambda: session.run(feeds)
    session.run(feeds)  # checks them, and says in one line what does not fit
    options = ort.RunOptions()
    for key, value in config.items():
        options.add_run_config_entry(key, value)
    return lambda: session.onnxruntime.run(None, dict(feeds), options)


def _timed(run: Callable[[], Any]) -> tuple[float, int]:
    """Return the seconds of a run and the bytes of its outputs."""
    started = time.perf_counter()
    outputs = run()
    elapsed = time.perf_counter() - started
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return elapsed, sum(_bytes(value) for value in values)


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(_bytes(item) for item in value)
    if hasattr(value, "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes())
    return int(getattr(value, "nbytes", 0))


def _repeated(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    elapsed: list[float] = []
    until = time.perf_counter() + seconds
    while len(elapsed) < _MOST_RUNS and (not elapsed or time.perf_counter() < until):
        for run in runs:
            started = time.perf_counter()
            run()
            elapsed.append(time.perf_counter() - started)
    return elapsed


def _traced(plan: PointPlan, folder: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run once more in a session that writes what each node took, and the graph that it runs."""
    graph = folder / "executed.onnx"
    settings = {
        **plan.settings,
        # A planned block would be one allocation for all nodes.
        "memory_pattern": False,
        "trace_prefix": str(folder / "trace"),
        "optimized_model": str(graph),
        "config": {**plan.settings.get("config", {}), SAVED_WEIGHTS: "executed.weights"},
    }
    try:
        session = Session(str(plan.model), **settings)
        problem = ""
    except OrtkitError as error:  # a graph with parts of another compiler cannot be saved
        del settings["optimized_model"], settings["config"]
        session = Session(str(plan.model), **settings)
        problem = f"ONNX Runtime does not save the graph that it runs: {error.problem}"
    with session:
        peaks = {
            _PROVIDERS[arena.memory]: arena.peak
            for arena in report_of(session).arenas
            if arena.memory in _PROVIDERS
        }
        session.run(feeds)
        trace = session.onnxruntime.end_profiling()
    saved = "" if problem else str(graph)
    version = import_onnxruntime().__version__
    return {
        "trace": str(trace), "graph": saved, "problem": problem, "peaks": peaks,
        "version": version,
    }  # fmt: skip


def read_feeds(ort: ModuleType, folder: Path) -> dict[str, Any]:
    """Read an input set; types that numpy lacks come as OrtValues."""
    found: dict[str, Any] = {}
    for entry in read_manifest(folder):
        if entry["kind"] == "none":
            continue
        values = [
            plain_array(folder, item)
            if item["type"] in PLAIN_TYPES or item["type"] == STRING_TYPE
            else ort_value(ort, folder, item)
            for item in entry["items"]
        ]
        found[entry["name"]] = values if entry["kind"] == "sequence" else values[0]
    return found

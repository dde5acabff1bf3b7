"""The process that loads a model and runs it, and says what memory each of the two took.

Of its own, because neither ONNX Runtime's counters nor the system's peaks start again with a
second session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from ortkit.errors import OrtkitError
from ortkit.runtime.memory.process import process_memory, reset_peak
from ortkit.runtime.memory.report import report_of
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


class Job(TypedDict):
    """What to load, how, and what to run."""

    model: str
    feeds: str  # a folder of tensors
    settings: dict[str, Any]  # of the sessions
    arena: dict[str, int]  # of an arena that the sessions share, as OrtArenaCfg takes it
    run_config: dict[str, str]
    sessions: int
    seconds: float  # how long to run, after the first run
    trace: str  # a folder for the trace of a further session; "" for none
    result: str


def main(job_file: str) -> None:
    """Run a job and write its result, or what stopped it."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    result: dict[str, Any] = {"problem": "", "is_loaded": False}
    try:
        _measure(job, result)
    except OrtkitError as error:
        result |= {"problem": error.problem, "where": error.where, "fix": error.fix}
    except Exception as error:  # noqa: BLE001  whatever stops a session is the result
        problem = " ".join(str(error).split()) or type(error).__name__
        result |= {"problem": problem, "where": "", "fix": ""}
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


def _measure(job: Job, result: dict[str, Any]) -> None:
    ort = import_onnxruntime()
    feeds = read_feeds(ort, Path(job["feeds"]))
    if job["arena"]:
        _make_shared_arena(ort, job["arena"])
    _warm_up_reading(job)
    result["peak_is_reset"] = reset_peak()
    result["before"] = process_memory().to_json()
    with ExitStack() as opened:
        started = time.perf_counter()
        sessions = [
            opened.enter_context(Session(job["model"], **job["settings"]))
            for _ in range(job["sessions"])
        ]
        result["is_loaded"] = True
        result["load_seconds"] = time.perf_counter() - started
        result["loaded"] = _reports(sessions)
        result["notes"] = list(sessions[0].notes)
        runs = [_runner(ort, session, feeds, job["run_config"]) for session in sessions]
        reset_peak()
        taken = [_timed(run) for run in runs]
        result["first_seconds"] = taken[0][0]
        result["output_bytes"] = taken[0][1]
        result["first"] = _reports(sessions)
        reset_peak()
        result["run_seconds"] = _repeated(runs, job["seconds"])
        result["last"] = _reports(sessions)
    if job["trace"]:
        result["trace"] = _traced(job, feeds)


def _warm_up_reading(job: Job) -> None:
    """Read a report once, so that what that itself takes does not count as the session's."""
    import onnx.parser

    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Neg (x) }'
    )
    tiny = onnx.parser.parse_model(text)
    settings = {key: job["settings"][key] for key in ("target",) if key in job["settings"]}
    # With the same target: a device's libraries and context are not the model's either.
    with Session(tiny, **settings, fallback=True) as session:
        report_of(session)


def _make_shared_arena(ort: ModuleType, config: Mapping[str, int]) -> None:
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(dict(config)))


def _reports(sessions: list[Session]) -> list[dict[str, object]]:
    return [report_of(session).to_json() for session in sessions]


def _runner(
    ort: ModuleType, session: Session, feeds: Mapping[str, Any], config: Mapping[str, str]
) -> Callable[[], Any]:
    if not config:
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
    taken = time.perf_counter() - started
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return taken, sum(_bytes(one) for one in values)


def _bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(_bytes(one) for one in value)
    if hasattr(value, "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes())
    return int(getattr(value, "nbytes", 0))


def _repeated(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < _MOST_RUNS and (not taken or time.perf_counter() < until):
        for run in runs:
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return taken


def _traced(job: Job, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run once more in a session that writes what each node took, and the graph that it runs."""
    folder = Path(job["trace"])
    graph = folder / "executed.onnx"
    settings = {
        **job["settings"],
        # A planned block would be one allocation for all nodes.
        "memory_pattern": False,
        "trace_prefix": str(folder / "trace"),
        "optimized_model": str(graph),
        "config": {**job["settings"].get("config", {}), SAVED_WEIGHTS: "executed.weights"},
    }
    try:
        session = Session(job["model"], **settings)
        problem = ""
    except OrtkitError as error:  # a graph with parts of another compiler cannot be saved
        del settings["optimized_model"], settings["config"]
        session = Session(job["model"], **settings)
        problem = f"ONNX Runtime does not save the graph that it runs: {error.problem}"
    with session:
        peaks = {
            _PROVIDERS[one.memory]: one.peak
            for one in report_of(session).arenas
            if one.memory in _PROVIDERS
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

"""The process that times models: `python timing_child.py JOB.json`; imports nothing of ortkit.

A crash in a session or a kernel library then ends this process and not the caller.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

#: An input set of which fewer runs fit into the time gives way to the next.
_LEAST_RUNS = 20


class Variant(TypedDict):
    """One model to time."""

    model: str
    libraries: list[str]


class Job(TypedDict):
    """What to time and for how long."""

    variants: list[Variant]
    feeds: list[str]  # npz files; the first on which all variants run is used
    providers: list[str]
    threads: int  # 0: ONNX Runtime decides
    seconds: float
    most_rounds: int
    profile_seconds: float  # 0: no profile of the first variant
    folder: str  # for the profile
    result: str


class Result(TypedDict, total=False):
    """What came of it; `problem` is empty if all is there."""

    problem: str
    feeds: str
    seconds: list[list[float]]  # per variant, per round
    profile: str


def main(job_file: str) -> None:
    """Run a job and write its result."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        result = _measure(job)
    except Exception as error:  # noqa: BLE001  whatever stops a session is the result
        result = {"problem": " ".join(str(error).split()) or type(error).__name__}
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


def _measure(job: Job) -> Result:
    import onnxruntime as ort

    # Without this check ONNX Runtime goes on with the CPU and says so in a log only.
    for provider in job["providers"]:
        if provider not in ort.get_available_providers():
            raise ValueError(f"this ONNX Runtime has no {provider}")
    sessions = [_session(job, variant) for variant in job["variants"]]
    path, feeds = _first_that_runs(sessions[0], job)
    result: Result = {"problem": "", "feeds": path}
    result["seconds"] = _rounds(sessions, feeds, job)
    if job["profile_seconds"] > 0:
        sessions.clear()
        result["profile"] = _profile(job, feeds)
    return result


def _session(job: Job, variant: Variant, *, profile: bool = False) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = job["threads"]
    # The threads of one session must not spin while the other runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for library in variant["libraries"]:
        options.register_custom_ops_library(library)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(job["folder"]) / "profile")
    return ort.InferenceSession(variant["model"], options, providers=job["providers"])


def _first_that_runs(session: Any, job: Job) -> tuple[str, Mapping[str, np.ndarray]]:
    """Return the first input set that runs, the last one that does if all take long."""
    problem: Exception | None = None
    slow: tuple[str, Mapping[str, np.ndarray]] | None = None
    for path in job["feeds"]:
        with np.load(path) as file:
            feeds = {name: file[name] for name in file.files}
        started = time.perf_counter()
        try:
            session.run(None, feeds)
        except Exception as error:  # noqa: BLE001  the next input set may do
            problem = error
            continue
        if time.perf_counter() - started < job["seconds"] / _LEAST_RUNS:
            return path, feeds
        slow = path, feeds
    if slow is not None:
        return slow
    raise problem or ValueError("there are no inputs to run on")


def _rounds(sessions: list[Any], feeds: Mapping[str, np.ndarray], job: Job) -> list[list[float]]:
    """Time each session once a round, in turning order, so that drift hits all alike."""
    until = time.perf_counter() + job["seconds"]
    warm_until = time.perf_counter() + 0.2 * job["seconds"]
    for count in range(10):
        for session in sessions:
            session.run(None, feeds)
        if count and time.perf_counter() > warm_until:
            break
    taken: list[list[float]] = [[] for _ in sessions]
    for number in range(job["most_rounds"]):
        if number and time.perf_counter() > until:
            break
        order = range(len(sessions)) if number % 2 == 0 else reversed(range(len(sessions)))
        for index in order:
            started = time.perf_counter()
            sessions[index].run(None, feeds)
            taken[index].append(time.perf_counter() - started)
    return taken


def _profile(job: Job, feeds: Mapping[str, np.ndarray]) -> str:
    session = _session(job, job["variants"][0], profile=True)
    until = time.perf_counter() + job["profile_seconds"]
    for count in range(32):
        session.run(None, feeds)
        if count and time.perf_counter() > until:
            break
    return str(session.end_profiling())


if __name__ == "__main__":
    main(sys.argv[1])

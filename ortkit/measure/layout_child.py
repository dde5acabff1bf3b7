"""The process that runs what layouts are compared on, and leaves ONNX Runtime's traces.

All variants of a node are loaded at once and run in turns, so that what disturbs one disturbs all.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict

from ortkit.errors import OrtkitError
from ortkit.runtime.memory.point_child import read_feeds
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.session import Session

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


def main(job_file: str) -> None:
    """Run a job and write its result."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    Path(job["result"]).write_text(json.dumps(_run(job)), encoding="utf-8")


def _run(job: Job) -> list[Ran]:
    feeds = read_feeds(import_onnxruntime(), Path(job["feeds"]))
    ran: list[Ran] = [{"trace": "", "problem": ""} for _ in job["variants"]]
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
        _rounds(sessions, feeds, job["seconds"] * len(sessions))
        for place, session in sessions.items():
            ran[place]["trace"] = str(session.onnxruntime.end_profiling())
    return ran


def _rounds(sessions: dict[int, Session], feeds: dict[str, Any], seconds: float) -> None:
    until = time.perf_counter() + seconds
    for number in range(_MOST_RUNS):
        if number >= _LEAST_RUNS and time.perf_counter() > until:
            break
        for session in sessions.values():
            session.run(feeds)

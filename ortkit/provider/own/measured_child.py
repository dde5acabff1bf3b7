"""The process that times groups: see `measured`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np

from ortkit.provider.base import ExecutionProvider
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Group
from ortkit.provider.kernel import Kernel
from ortkit.provider.own.kernels import kernel_of
from ortkit.provider.own.weights import aligned
from ortkit.provider.registration import register_provider

_WARM_UP, _LEAST_RUNS, _MOST_RUNS = 3, 5, 2000


class GroupJob(TypedDict):
    """One group: its nodes as a model, and the program that stands for them."""

    model: str
    feeds: list[str]  # npz files, of which the first that runs counts
    weights: str  # an npz file
    library: str
    symbol: str
    inputs: list[str]
    outputs: list[str]


class Job(TypedDict):
    """All groups; `seconds` is the length of a turn."""

    groups: list[GroupJob]
    rounds: int
    seconds: float
    result: str


class Timed(TypedDict):
    """Of one group the seconds of the fastest run of each turn; `problem` is empty if there."""

    symbol: str
    nodes: list[float]
    program: list[float]
    problem: str


class _OneGroup(ExecutionProvider):
    """Takes all nodes of a model as one group, whose program is known."""

    name: ClassVar[str] = "OrtkitMeasuringExecutionProvider"
    drop_constants: ClassVar[bool] = True
    job: ClassVar[GroupJob]

    def get_capability(self, graph: GraphView) -> Iterable[Group]:
        """Return all nodes."""
        return [Group(tuple(graph), drop_constants=True)]

    def compile(self, subgraph: GraphView) -> Kernel:
        """Return the program."""
        job = self.job
        with np.load(job["weights"]) as file:
            weights = tuple(aligned(file[name]) for name in file.files)
        return kernel_of(
            subgraph, Path(job["library"]), job["symbol"], job["inputs"], job["outputs"], weights
        )


def main(job_file: str) -> None:
    """Run a job; the result is written again after each group, so that a crash keeps it."""
    job: Job = json.loads(Path(job_file).read_text("utf-8"))
    register_provider(_OneGroup())
    done: list[Timed] = []
    for group in job["groups"]:
        found: Timed = {"symbol": group["symbol"], "nodes": [], "program": [], "problem": ""}
        try:
            _time(group, job, found)
        except Exception as error:  # noqa: BLE001  whatever stops a session is the result
            found["problem"] = str(error) or type(error).__name__
        done.append(found)
        written = Path(job["result"] + ".new")
        written.write_text(json.dumps(done), "utf-8")
        written.replace(job["result"])


def _time(group: GroupJob, job: Job, found: Timed) -> None:
    feeds = _runnable(group)
    for _ in range(job["rounds"]):
        for is_program in (False, True, True, False):
            taken = _turn(_session(group, is_program=is_program), feeds, job["seconds"])
            found["program" if is_program else "nodes"].append(taken)


def _runnable(group: GroupJob) -> dict[str, np.ndarray]:
    """Return the first inputs that the nodes run on."""
    session = _session(group, is_program=False)
    problem: Exception | None = None
    for path in group["feeds"]:
        with np.load(path) as file:
            feeds = {name: file[name] for name in file.files}
        try:
            session.run(None, feeds)
        except Exception as error:  # noqa: BLE001  onnxruntime's own classes share no base
            problem = error
        else:
            return feeds
    raise problem or ValueError("no inputs")


def _session(group: GroupJob, *, is_program: bool) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not is_program:
        return ort.InferenceSession(group["model"], options, providers=["CPUExecutionProvider"])
    _OneGroup.job = group
    # The nodes are what was claimed after ONNX Runtime's first rewrites.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    devices = [one for one in ort.get_ep_devices() if one.ep_name == _OneGroup.name]
    options.add_provider_for_devices(devices, {"strict": "1"})
    return ort.InferenceSession(group["model"], options)


def _turn(session: Any, feeds: dict[str, np.ndarray], seconds: float) -> float:
    """Return the fastest of some runs."""
    for _ in range(_WARM_UP):
        session.run(None, feeds)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < _MOST_RUNS and (len(taken) < _LEAST_RUNS or time.perf_counter() < until):
        started = time.perf_counter()
        session.run(None, feeds)
        taken.append(time.perf_counter() - started)
    return min(taken)

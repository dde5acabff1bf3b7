"""Groups timed in a process of their own; see `measured.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ortkit.provider.base import ExecutionProvider
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Group
from ortkit.provider.kernel import Kernel
from ortkit.provider.own.kernels import kernel_of
from ortkit.provider.own.weights import aligned
from ortkit.provider.registration import register_provider
from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import preload_onnxruntime
from ortkit.runtime.rounds import fastest_run, interleaved, there_and_back

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime


@dataclass(frozen=True)
class TimedGroup:
    """One group: its nodes as a model, and the program that stands for them."""

    model: Path
    feeds: tuple[Path, ...]
    """npz files, of which the first that runs counts."""
    weights: Path
    """An npz file."""
    library: Path
    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class GroupsJob:
    """All groups; `seconds` is the length of a turn."""

    groups: tuple[TimedGroup, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class GroupTimes:
    """Of one group the seconds of the fastest run of each turn; `problem` is empty if there."""

    symbol: str
    nodes: tuple[float, ...] = ()
    program: tuple[float, ...] = ()
    problem: str = ""


class _OneGroup(ExecutionProvider):
    """Takes all nodes of a model as one group, whose program is known."""

    name: ClassVar[str] = "OrtkitMeasuringExecutionProvider"
    drop_constants: ClassVar[bool] = True
    group: ClassVar[TimedGroup]

    def get_capability(self, graph: GraphView) -> Iterable[Group]:
        """Return all nodes."""
        return [Group(tuple(graph), drop_constants=True)]

    def compile(self, subgraph: GraphView) -> Kernel:
        """Return the program."""
        group = self.group
        with np.load(group.weights) as file:
            weights = tuple(aligned(file[name]) for name in file.files)
        return kernel_of(
            subgraph, group.library, group.symbol, group.inputs, group.outputs, weights
        )


def time_groups(job: GroupsJob, tell: Callable[[GroupTimes], None]) -> None:
    """Time one group after the other."""
    register_provider(_OneGroup())
    for group in job.groups:
        try:
            tell(_timed(group, job))
        except Exception as error:  # noqa: BLE001  whatever stops a session is the result
            tell(GroupTimes(group.symbol, problem=str(error) or type(error).__name__))


def _timed(group: TimedGroup, job: GroupsJob) -> GroupTimes:
    feeds = _runnable(group)

    def turn(make: Callable[[TimedGroup], Any]) -> float:
        session = make(group)
        return fastest_run(lambda: session.run(None, feeds), job.seconds)

    turns = [partial(turn, make) for make in (_nodes_session, _program_session)]
    nodes, programs = interleaved(turns, job.rounds, order=there_and_back)
    return GroupTimes(group.symbol, tuple(nodes), tuple(programs))


def _runnable(group: TimedGroup) -> dict[str, np.ndarray]:
    """Return the first inputs that the nodes run on."""
    session = _nodes_session(group)
    problem: Exception | None = None
    for path in group.feeds:
        with np.load(path) as file:
            feeds = {name: file[name] for name in file.files}
        try:
            session.run(None, feeds)
        except Exception as error:  # noqa: BLE001  onnxruntime's own classes share no base
            problem = error
        else:
            return feeds
    raise problem or ValueError("no inputs")


def _nodes_session(group: TimedGroup) -> Any:
    import onnxruntime as ort

    return open_session(ort, SessionPlan(group.model))


def _program_session(group: TimedGroup) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    _OneGroup.group = group
    # The nodes are what was claimed after ONNX Runtime's first rewrites.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    devices = [device for device in ort.get_ep_devices() if device.ep_name == _OneGroup.name]
    options.add_provider_for_devices(devices, {"strict": "1"})
    return ort.InferenceSession(str(group.model), options)

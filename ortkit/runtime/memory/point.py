"""One model at one set of inputs: what loading it and running it takes of memory."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from ortkit.errors import OrtkitError, RunError
from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.isolation.run import run_isolated
from ortkit.runtime.arenas import Unavailable
from ortkit.runtime.memory.node_table import NodeMemory
from ortkit.runtime.memory.nodes import read_node_memory
from ortkit.runtime.memory.point_child import NotLoadedError as NotLoadedError
from ortkit.runtime.memory.point_child import PointJob, Stages, measure_stages
from ortkit.runtime.memory.point_child import PointPlan as PointPlan
from ortkit.runtime.memory.process import ProcessMemory
from ortkit.runtime.memory.report import MemoryReport, to_json
from ortkit.runtime.ort import require_onnxruntime
from ortkit.temporary import TemporaryFolder

_NO_NODES: Mapping[str, object] = {"nodes": [], "peaks": []}


@dataclass(frozen=True)
class Point:
    """What was measured; reports are of the first session, bytes throughout."""

    before: ProcessMemory
    """With ONNX Runtime loaded and the inputs read, before the model."""
    loaded: MemoryReport
    """With the session made; the peaks are those of making it."""
    first: MemoryReport
    """After one run whose outputs were given back; the process's peak is that run's."""
    last: MemoryReport
    """After more runs, which may find buffers planned from the first one's shapes."""
    held: int | None
    """By the first provider's arenas of all sessions after the last run; a shared one counts
    once; None: there is no arena."""
    output_bytes: int
    peak_is_reset: bool
    """Whether the process's peaks are those of each stage; else since it began."""
    load_seconds: float
    first_seconds: float
    run_seconds: tuple[float, ...]
    notes: tuple[str, ...]
    nodes: NodeMemory | Unavailable | None
    """What each node takes; None if that was not asked for."""

    @property
    def run_ms(self) -> float:
        """Median of the runs after the first."""
        return 1e3 * median(self.run_seconds)

    @property
    def peak_resident(self) -> int | None:
        """The most that the process had resident while it loaded and ran."""
        peaks = [
            memory_report.process.peak
            for memory_report in (self.loaded, self.first, self.last)
            if memory_report.process
        ]
        return max(peaks, default=None)

    @property
    def stages(self) -> tuple[tuple[str, MemoryReport], ...]:
        """The reports by name, in order."""
        return ("loaded", self.loaded), ("first run", self.first), ("last run", self.last)

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        nodes = self.nodes
        return {
            "before": self.before.to_json(),
            "stages": [
                {"stage": name, **memory_report.to_json()} for name, memory_report in self.stages
            ],
            "held": self.held,
            "output_bytes": self.output_bytes,
            "peak_resident": self.peak_resident,
            "peak_is_reset": self.peak_is_reset,
            "load_ms": 1e3 * self.load_seconds,
            "first_run_ms": 1e3 * self.first_seconds,
            "run_ms": self.run_ms,
            "runs": len(self.run_seconds),
            "notes": list(self.notes),
            **(nodes.to_json() if isinstance(nodes, NodeMemory) else _NO_NODES),
            "unavailable": to_json(self._unavailable()),
        }

    def _unavailable(self) -> tuple[Unavailable, ...]:
        if isinstance(self.nodes, NodeMemory):
            return self.nodes.unavailable
        return () if self.nodes is None else (self.nodes,)


def measure_point(plan: PointPlan) -> Point:
    """Load a model and run it in a process of its own.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
        NotLoadedError: The model does not load, or not on this target.
        RunError: It does not run, crashed, or took too long.
    """
    require_onnxruntime()
    with TemporaryFolder("memory") as folder:
        paths = replace(plan, model=plan.model.absolute(), feeds=plan.feeds.absolute())
        job = PointJob(paths, folder if plan.nodes else None)
        # With nothing imported, so that what is measured is the model's.
        stages = run_isolated(
            measure_stages, job, timeout_seconds=plan.timeout_seconds, imports="nothing"
        )
        if isinstance(stages, Ended):
            raise _error(stages, str(plan.model))
        nodes = None if stages.trace is None else read_node_memory(stages.trace)
    return _point(stages, nodes, is_shared=bool(plan.arena))


def _error(ended: Ended, where: str) -> OrtkitError:
    if isinstance(ended, Failed):
        return ended.error or RunError(ended.problem, where=where)
    if isinstance(ended, TimedOut):
        return RunError(f"did not end within {ended.seconds:.0f} seconds", where=where)
    # The system kills without a word when memory runs out.
    is_killed = ended == Crashed(signal.SIGKILL)
    return RunError(f"the process {ended}{' (out of memory?)' if is_killed else ''}", where=where)


def _point(stages: Stages, nodes: NodeMemory | Unavailable | None, *, is_shared: bool) -> Point:
    # A session's first arena is that of its first provider.
    held = [report.arenas[0].held for report in stages.last if report.arenas]
    return Point(
        before=stages.before,
        loaded=stages.loaded[0],
        first=stages.first[0],
        last=stages.last[0],
        held=(held[0] if is_shared else sum(held)) if held else None,
        output_bytes=stages.output_bytes,
        peak_is_reset=stages.peak_is_reset,
        load_seconds=stages.load_seconds,
        first_seconds=stages.first_seconds,
        run_seconds=stages.run_seconds,
        notes=stages.notes,
        nodes=nodes,
    )

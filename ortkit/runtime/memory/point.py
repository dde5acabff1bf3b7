"""One model at one set of inputs: what loading it and running it takes of memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ortkit.errors import RunError
from ortkit.runtime.arenas import Arena, Unavailable
from ortkit.runtime.child_process import child_command
from ortkit.runtime.memory.devices import DeviceMemory
from ortkit.runtime.memory.node_table import NodeMemory
from ortkit.runtime.memory.nodes import read_node_memory
from ortkit.runtime.memory.point_child import Job
from ortkit.runtime.memory.process import ProcessMemory
from ortkit.runtime.memory.report import MemoryReport, to_json
from ortkit.runtime.ort import require_onnxruntime
from ortkit.temporary import TemporaryFolder


class NotLoadedError(RunError):
    """The session could not be made, so that no other inputs would do."""


_NO_NODES: Mapping[str, object] = {"nodes": [], "peaks": []}
_CHILD = "ortkit.runtime.memory.point_child"


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
    sessions: int = 1
    seconds: float = 0.5
    nodes: bool = False
    timeout_seconds: float = 600.0


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
        peaks = [one.process.peak for one in (self.loaded, self.first, self.last) if one.process]
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
            "stages": [{"stage": name, **one.to_json()} for name, one in self.stages],
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
        job: Job = {
            "model": str(plan.model.absolute()),
            "feeds": str(plan.feeds.absolute()),
            "settings": dict(plan.settings),
            "arena": dict(plan.arena),
            "run_config": dict(plan.run_config),
            "sessions": plan.sessions,
            "seconds": plan.seconds,
            "trace": str(folder) if plan.nodes else "",
            "result": str(folder / "result.json"),
        }
        result = _run(job, folder, plan)
        nodes = None
        if plan.nodes:
            nodes = read_node_memory(result["trace"])
    return _point(result, nodes, is_shared=bool(plan.arena))


def _run(job: Job, folder: Path, plan: PointPlan) -> dict[str, Any]:
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    try:
        ended = subprocess.run(
            child_command(_CHILD, str(job_file)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=plan.timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"did not end within {plan.timeout_seconds:.0f} seconds", where=str(plan.model)
        ) from error
    written = Path(job["result"])
    if not written.is_file():
        raise RunError(_how_it_ended(ended), where=str(plan.model))
    try:
        result: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    except ValueError as error:  # the disk is full
        raise RunError(_how_it_ended(ended), where=str(plan.model)) from error
    if result["problem"]:
        where = result["where"] or str(plan.model)
        kind = RunError if result["is_loaded"] else NotLoadedError
        raise kind(result["problem"], where=where, fix=result["fix"])
    return result


def _how_it_ended(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        # The system kills without a word when memory runs out (SIGKILL).
        out = " (out of memory?)" if ended.returncode == -9 else ""
        return f"the process crashed with signal {-ended.returncode}{out}"
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the process ended with {ended.returncode}"


def _point(
    result: Mapping[str, Any], nodes: NodeMemory | Unavailable | None, *, is_shared: bool
) -> Point:
    last = [_report(one) for one in result["last"]]
    # A session's first arena is that of its first provider.
    held = [one.arenas[0].held for one in last if one.arenas]
    return Point(
        before=ProcessMemory(**result["before"]),
        loaded=_report(result["loaded"][0]),
        first=_report(result["first"][0]),
        last=last[0],
        held=(held[0] if is_shared else sum(held)) if held else None,
        output_bytes=result["output_bytes"],
        peak_is_reset=result["peak_is_reset"],
        load_seconds=result["load_seconds"],
        first_seconds=result["first_seconds"],
        run_seconds=tuple(result["run_seconds"]),
        notes=tuple(result["notes"]),
        nodes=nodes,
    )


def _report(content: Mapping[str, Any]) -> MemoryReport:
    return MemoryReport(
        tuple(Arena(**one) for one in content["arenas"]),
        None if content["process"] is None else ProcessMemory(**content["process"]),
        tuple(DeviceMemory(**one) for one in content["devices"]),
        _missing(content["unavailable"]),
    )


def _missing(content: Sequence[Mapping[str, str]]) -> tuple[Unavailable, ...]:
    return tuple(Unavailable(one["what"], one["reason"]) for one in content)

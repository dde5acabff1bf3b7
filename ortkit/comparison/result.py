"""What a comparison found: the content of `ortkit compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ortkit.comparison.concurrency import Throughput
from ortkit.comparison.differences import OutputDifference
from ortkit.comparison.first_node import FirstNode
from ortkit.comparison.rows import Row
from ortkit.measure.decoding import Phase
from ortkit.runtime.intervals import Interval, Speedup, median_of
from ortkit.runtime.machine import MachineLoad
from ortkit.runtime.workers.interleave import Samples

SCHEMA = "ortkit.compare/1"

Equality = Literal["equal", "different", "not known"]


@dataclass(frozen=True)
class Spread:
    """A few numbers, one for each process."""

    median: float
    least: float
    most: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Take them together."""
        return Spread(float(np.median(values)), min(values), max(values), len(values))


@dataclass(frozen=True)
class Latency:
    """How long runs take; milliseconds."""

    median: Interval
    """Over rounds; a round is the median of its runs."""
    least: float
    mean: float
    deviation: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    most: float
    runs: int
    total: float
    """Of all runs together."""
    per_second: float
    """Runs in a second of nothing but runs."""
    items_per_second: float | None
    """Times the batch, None where that is not known."""
    processors: float
    """That a run keeps busy, on average."""


@dataclass(frozen=True)
class Memory:
    """What a process with only this session takes; bytes, the most of all its processes.

    None where the system does not say.
    """

    before: int | None
    """Resident with ONNX Runtime imported and no session yet."""
    loaded: int | None
    """Resident after the session was made."""
    peak: int | None
    """The most that was ever resident."""
    arenas: tuple[Mapping[str, object], ...]
    """What ONNX Runtime's allocators count, see `ortkit memory`."""
    not_available: tuple[str, ...]


@dataclass(frozen=True)
class RowResult:
    """What one variant took and gave."""

    row: Row
    problem: str
    """Why it did not run, empty if it did."""
    skipped: bool
    """Whether it was never meant to run: its batch is fixed."""
    load_ms: Spread | None
    first_run_ms: Spread | None
    latency: Latency | None
    rounds_ms: tuple[tuple[float, ...], ...]
    """The rounds of each process, aligned with those of the other rows."""
    memory: Memory | None
    nodes: Mapping[str, int | None]
    """By provider; None where ONNX Runtime does not say how many."""
    settled: bool
    """Whether its times had settled before they were counted."""
    speedup: Speedup | None
    """Over the row that it stands against."""
    outputs: tuple[OutputDifference, ...]
    """Against those of that row."""
    equality: Equality | None
    """None for a row that stands against none."""
    concurrency: tuple[Throughput, ...] = ()
    """For each number of callers that was asked for."""
    first_node: FirstNode | None = None
    """Where it parts from that row, if they differ in nothing but the ONNX Runtime."""

    def slower_by(self) -> float | None:
        """Return the least by which it is slower than that row, 0.1 for 10 %; None: not known."""
        if self.speedup is None or self.speedup.high is None:
            return None
        return 1 / self.speedup.high - 1 if self.speedup.direction == "slower" else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        content = {
            name: None if part is None else asdict(part)
            for name, part in (
                ("load_ms", self.load_ms), ("first_run_ms", self.first_run_ms),
                ("latency_ms", self.latency), ("memory_bytes", self.memory),
                ("speedup", self.speedup),
            )
        }  # fmt: skip
        return {
            "row": self.row.number,
            "model": str(self.row.model),
            "provider": self.row.provider,
            "threads": self.row.threads,
            "optimizations": self.row.optimizations,
            "onnxruntime": self.row.onnxruntime,
            "against": self.row.against,
            "problem": self.problem,
            "skipped": self.skipped,
            "nodes": dict(self.nodes),
            "settled": self.settled,
            **content,
            "concurrency_ms": [asdict(throughput) for throughput in self.concurrency],
            "rounds_ms": [list(rounds) for rounds in self.rounds_ms],
            "equality": self.equality,
            "first_node": None if self.first_node is None else self.first_node.to_json(),
            "outputs": [each.to_json() for each in self.outputs],
        }


@dataclass(frozen=True)
class BatchResult:
    """All variants on one set of inputs."""

    batch: int | None
    """None: as the inputs came."""
    inputs: Mapping[str, tuple[int, ...]]
    control: Speedup | None
    """The first variant against itself."""
    noise: float | None
    """Ratios up to 1 + noise are no difference; None if that is not known."""
    rows: tuple[RowResult, ...]
    notes: tuple[str, ...]
    phase: Phase | None = None
    """Of a decoder; items are tokens then."""

    @property
    def items(self) -> str:
        """What one run computes, as tables call it; empty if that is not known."""
        if self.phase is not None:
            return "tokens"
        return "" if self.batch is None else "items"

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "batch": self.batch,
            "phase": None if self.phase is None else asdict(self.phase),
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "control": None if self.control is None else asdict(self.control),
            "noise": self.noise,
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """Everything that was compared."""

    batches: tuple[BatchResult, ...]
    machine: MachineLoad
    version: str
    """Of ONNX Runtime."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def equality(self) -> Equality:
        """Whether all variants give what those give that they stand against."""
        rows = [row for batch in self.batches for row in batch.rows]
        if any(row.equality == "different" or (row.problem and not row.skipped) for row in rows):
            return "different"
        if any(row.equality == "not known" for row in rows) or not any(
            row.equality == "equal" or (row.row.against is None and row.latency) for row in rows
        ):
            return "not known"
        return "equal"

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit compare --json`."""
        return {
            "schema": SCHEMA,
            "onnxruntime": self.version,
            "equality": self.equality,
            "batches": [batch.to_json() for batch in self.batches],
            "machine": self.machine.to_json(),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
        }


def latency_of(samples: Samples, batch: int | None) -> Latency:
    """Take the runs of all processes together."""
    runs = 1e3 * np.asarray(samples.runs)
    p50, p75, p90, p95, p99, p999 = (
        float(each) for each in np.quantile(runs, (0.5, 0.75, 0.9, 0.95, 0.99, 0.999))
    )
    per_second = len(runs) / samples.wall_seconds
    return Latency(
        median=median_of([[1e3 * each for each in rounds] for rounds in samples.rounds]),
        least=float(runs.min()),
        mean=float(runs.mean()),
        deviation=float(runs.std()),
        p50=p50,
        p75=p75,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
        most=float(runs.max()),
        runs=len(runs),
        total=float(runs.sum()),
        per_second=per_second,
        items_per_second=None if batch is None else per_second * batch,
        processors=samples.cpu_seconds / samples.wall_seconds,
    )


def memory_of(samples: Samples) -> Memory:
    """Take the most of all processes."""
    return Memory(
        before=_most([each.before["resident"] for each in samples.loaded]),
        loaded=_most([each.after["resident"] for each in samples.loaded]),
        peak=_most([each["peak_resident"] for each in samples.used]),
        arenas=tuple(samples.arenas),
        not_available=tuple(samples.not_available),
    )


def _most(values: Sequence[int]) -> int | None:
    known = [value for value in values if value >= 0]
    return max(known) if known else None

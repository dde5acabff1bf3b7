"""What a profile says: times by node and by operator, against what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.trace.events import TensorShape
from ortkit.runtime.profiling.trace.trace import Trace

SCHEMA = "ortkit.profile/1"

Bound = Literal["arithmetic", "memory"]


@dataclass(frozen=True)
class Times:
    """Some times, in microseconds."""

    count: int
    mean_us: float
    least_us: float
    median_us: float
    p95_us: float
    most_us: float
    low_us: float | None
    """Where the true median lies with 95 % confidence; None: too few times for that."""
    high_us: float | None


@dataclass(frozen=True)
class Balance:
    """How the session's threads shared a node's work, by the clock of the main thread."""

    parallel: float
    """Part of the calls that used more than one thread, 0 to 1."""
    waiting: float
    """Part of the node's time in which the main thread waited for the others, 0 to 1."""
    handing_out: float
    """Part of the node's time in which it handed work out or took it back, 0 to 1."""
    tasks: tuple[int, ...]
    """Tasks that each other thread ran, over all counted runs."""


@dataclass(frozen=True)
class Work:
    """What the calls of a row did, in one run."""

    flops: int | None
    """None: a size or the operator's arithmetic is not known."""
    bytes_moved: int | None
    """Read and written, weights included, as if nothing stayed in a cache."""
    gflops: float | None
    """GFLOP/s."""
    gbs: float | None
    """GB/s (bytes per ns)."""
    bound: Bound | None
    """Which of the machine's peaks limits it; None: no peaks, or not known."""
    attained: float | None
    """Least time that the peaks allow, over the time taken: 1 is the roofline."""
    least_us: float | None
    """That least time, for one run."""


@dataclass(frozen=True)
class Row:
    """All calls of one node."""

    name: str
    op: str
    domain: str | None
    """None: not known without the model."""
    provider: str
    holder: int | None
    """Row of the If, Loop or Scan whose body it is in."""
    calls: float
    """In one run."""
    own_us: float
    """In one run, mean of the middle half of the runs; without the nodes of its bodies."""
    share: float
    """Of the time of all nodes, 0 to 1."""
    run: Times
    """What it takes in a run, over the runs."""
    call: Times
    """What one call takes."""
    gap_us: float
    """Between the end of what ran before and its begin, in one run; tracing takes its part."""
    inputs: tuple[TensorShape, ...]
    """Of most of its calls; weights that were packed when the session was made are included only
    where the model is known."""
    outputs: tuple[TensorShape, ...]
    shapes: int
    """Different sets of shapes that its calls had."""
    output_bytes: int
    work: Work
    balance: Balance | None
    """None: the trace does not say, or the provider uses no threads of the session."""
    device_us: float | None
    """Of its kernels on the device, in one run; None: not known."""
    copies_us: float | None
    """Of its copies to and from the device, in one run."""
    origins: tuple[str, ...] = ()
    """The nodes of the model that it stands for, but for constants; none if not known."""
    region: int | None = None
    """Rows of one number are neighbours that one kernel could compute, see `Profile.regions`."""

    @property
    def label(self) -> str:
        """Its operator, with the domain if it is not ONNX's."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


@dataclass(frozen=True)
class OpRow:
    """All nodes of one operator on one provider."""

    op: str
    provider: str
    nodes: int
    calls: float
    own_us: float
    share: float
    run: Times
    call: Times
    work: Work
    """Of the nodes of which it is known; `uncounted` says of how many it is not."""
    uncounted: int
    device_us: float | None


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel on a device, all copies or all fills of one kind."""

    name: str
    kind: str
    """`kernel`, `copy` or `fill`."""
    calls: float
    """In one run."""
    us: float
    """In one run."""
    share: float
    """Of the time of all of them, 0 to 1."""
    bytes: int | None
    """Copied or filled in one run."""


@dataclass(frozen=True)
class Overall:
    """Where the time of a run goes: means of the middle half of the runs, in microseconds."""

    profiled: Times
    """Runs that were traced: tracing costs time at each node."""
    plain: Times | None
    """Runs of the same session that were not traced; None: there were none."""
    kernels_us: float
    """All kernels together; more than a run where nodes run at the same time."""
    covered_us: float
    """In which at least one kernel ran."""
    least_covered_us: float
    """The same of the run of which it is the least."""
    gaps_us: float
    """Between the kernels of a traced run: the runtime's own time, and the tracing's."""
    outside_us: float
    """Before the first kernel and after the last: feeds, outputs, waiting for the device."""
    device_us: float | None
    """In which the device did anything; None: not known."""
    copies_us: float | None
    peak_bytes: int | None
    """Most in use in the arenas of all providers during a run; None: the trace does not say."""

    @property
    def run_us(self) -> float:
        """What a run takes, without tracing where that is known: the median."""
        return (self.plain or self.profiled).median_us

    @property
    def overhead(self) -> float | None:
        """What tracing adds to a run, as part of one that is not traced; of the fastest runs."""
        if self.plain is None or not self.plain.least_us:
            return None
        return self.profiled.least_us / self.plain.least_us - 1


@dataclass(frozen=True)
class About:
    """What was profiled."""

    model: str | None = None
    sha256: str | None = None
    """Of the model's file; None: it is not known."""
    onnxruntime: str | None = None
    providers: tuple[str, ...] = ()
    threads: int | None = None
    """Of a run within an operator."""
    machine: str | None = None
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    function_bodies: bool = False
    """Whether fused nodes ran their function bodies, for want of a kernel library."""
    made_by_ortkit: bool = False
    """Whether the model is what `ortkit optimize` wrote."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Where the time of a session's runs goes."""

    about: About
    rows: tuple[Row, ...]
    """Most time first."""
    ops: tuple[OpRow, ...]
    """Most time first."""
    overall: Overall
    runs: int
    """How many count."""
    load_us: int | None
    initialize_us: int | None
    peaks: Peaks | None
    notes: tuple[str, ...]
    """What is not known, and why; what the numbers hold and what they do not."""
    kernels: tuple[KernelRow, ...] = ()
    """What ran on a device, most time first."""
    regions: Mapping[int, int] = field(default_factory=dict)
    """Number of a region -> bytes that one kernel for all of it would read and write."""
    trace: Trace | None = field(default=None, repr=False)
    """None: read from a document."""
    counted: tuple[int, ...] = ()
    """Which of the trace's runs count."""
    row_of: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    """[events] the row of each of the trace's node events."""
    run_times: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    """[rows, runs] own time of a row in each counted run, in microseconds."""

    def tracing_us(self) -> float:
        """Return what tracing adds to a call of a node, as it is measured within it.

        0 where that is not known.
        """
        return 0.0 if self.peaks is None else self.peaks.tracing_us

    def share(self, ops: frozenset[str]) -> float:
        """Return the part of a traced run that these operators take, 0 to 1.

        By the fastest run of each node: others are disturbed at different nodes, and the sum of
        their usual times is no usual run's. What lies between nodes is that of the fastest run.
        """
        own = [(row.op, min(row.own_us, row.run.least_us)) for row in self.rows]
        between = max(0.0, self.overall.profiled.least_us - self.overall.least_covered_us)
        whole = sum(each for _, each in own) + between
        return sum(each for op, each in own if op in ops) / whole if whole else 0.0

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit profile --json`."""
        return {
            "schema": SCHEMA,
            "about": asdict(self.about),
            "runs": self.runs,
            "load_us": self.load_us,
            "initialize_us": self.initialize_us,
            "overall": {**asdict(self.overall), "overhead": self.overall.overhead},
            "peaks": None if self.peaks is None else asdict(self.peaks),
            "ops": [asdict(op) for op in self.ops],
            "nodes": [asdict(row) for row in self.rows],
            "regions": {str(number): size for number, size in self.regions.items()},
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "notes": list(self.notes),
        }

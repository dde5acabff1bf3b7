"""What ONNX Runtime's trace consists of: runs, kernels of nodes, kernels of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ortkit.operators import where

#: (dtype, dims) as numpy calls the type: `("float32", (1, 16))`.
TensorShape: TypeAlias = tuple[str, tuple[int, ...]]
#: Operators whose nodes hold graphs; their time includes that of the nodes in these.
HOLDERS = where(access="control")


@dataclass(frozen=True)
class RunEvent:
    """One call of `run`."""

    start_us: int
    duration_us: int
    thread: int = 0

    @property
    def end_us(self) -> int:
        """When it ended."""
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class Memory:
    """The arena of the node's provider after the node, in bytes."""

    in_use: int
    """In blocks that are handed out."""
    requested: int
    """What was asked for of them, before rounding."""
    in_use_delta: int
    requested_delta: int
    peak: int
    """Most in use since the session began."""
    held: int
    """Taken from the system."""
    held_delta: int


@dataclass(frozen=True)
class Scheduling:
    """How the session's thread pool shared the node's work out; times of the main thread."""

    pool: str
    block_sizes: tuple[int, ...]
    """Of each parallel loop: how many of its steps one task takes; none: the node ran alone."""
    distribution_us: int
    enqueue_us: int
    run_us: int
    wait_us: int
    """Waiting for the other threads, when its own part was done."""
    revoke_us: int
    tasks: tuple[tuple[int, int], ...]
    """(thread, tasks that it has run since the session began)."""
    threads: int = 1
    """All of the pool, those that have not begun yet too, and the one that runs the node."""


@dataclass(frozen=True)
class NodeSignature:
    """What all calls of a node with the same shapes have in common."""

    name: str
    op: str
    provider: str
    index: int | None
    """Of the node in its graph; None: the trace does not say."""
    inputs: tuple[TensorShape, ...]
    """Those that are there and are tensors; an absent optional input is left out."""
    outputs: tuple[TensorShape, ...]
    parameter_bytes: int
    activation_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class NodeEvent(NodeSignature):
    """One call of one node's kernel."""

    run: int
    """Which run it belongs to; -1: none."""
    start_us: int
    duration_us: int
    thread: int
    memory: Memory | None
    """None: the arena is off, or the trace is of a version that does not say."""
    scheduling: Scheduling | None


@dataclass(frozen=True)
class DeviceEvent:
    """One kernel, copy or fill on a device; times in the clock of the trace."""

    kind: Literal["kernel", "copy", "fill"]
    name: str
    start_us: float
    duration_us: float
    stream: str
    run: int = -1
    """The run that launched it; -1: none, or not known."""
    node: int = -1
    """Index in `Trace.nodes` of the call that launched it; -1: none, or not known."""
    bytes: int | None = None
    """Copied or filled."""
    launch_us: float | None = None
    """When the host launched it; None: the trace does not say."""
    thread: int | None = None
    """The host's thread that launched it."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else is known of it: grid, block, the names that the trace gives."""

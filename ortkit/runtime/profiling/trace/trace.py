"""What ONNX Runtime's profiler has written: runs, calls of nodes, what ran on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.trace.events import (
    DeviceEvent,
    NodeEvent,
    NodeSignature,
    RunEvent,
    Scheduling,
)
from ortkit.runtime.profiling.trace.lines import (
    MEMORY_KEYS,
    memory_of,
    parse_event,
    scheduling_in,
    scheduling_of,
)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeEvents(Sequence[NodeEvent]):
    """The calls of nodes in the order of the file, as columns; events are made on demand.

    A trace holds hundreds of thousands: whoever needs all of them reads the columns.
    """

    signatures: tuple[NodeSignature, ...]
    signature: Numbers
    """[events] index into `signatures`."""
    run: Numbers
    """[events] index of the run, -1 for none."""
    start_us: Numbers
    duration_us: Numbers
    thread: Numbers
    line_start: Numbers = field(repr=False)
    """Where in `text` the event's line begins."""
    text: bytes = field(repr=False)
    """The file."""

    def __len__(self) -> int:
        return len(self.line_start)

    @overload
    def __getitem__(self, index: int) -> NodeEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NodeEvent]: ...
    def __getitem__(self, index: int | slice) -> NodeEvent | Sequence[NodeEvent]:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(len(self)))]
        begin = int(self.line_start[index])
        _, args = parse_event(self.text[begin : self.text.find(b"\n", begin)])
        return NodeEvent(
            **vars(self.signatures[self.signature[index]]),
            run=int(self.run[index]),
            start_us=int(self.start_us[index]),
            duration_us=int(self.duration_us[index]),
            thread=int(self.thread[index]),
            memory=memory_of(args),
            scheduling=scheduling_of(args),
        )

    def __iter__(self) -> Iterator[NodeEvent]:
        return (self[index] for index in range(len(self)))

    def scheduling(self, index: int) -> Scheduling | None:
        """Return how the pool shared one event's work out, without reading all of the event."""
        begin = int(self.line_start[index])
        line = self.text[begin : self.text.find(b"\n", begin)]
        return scheduling_in(line)

    def has_no_pool(self, index: int) -> bool:
        """Say whether one event shows that the session has no thread but the caller's."""
        begin = int(self.line_start[index])
        return b'"thread_scheduling_stats" : ""' in self.text[begin : self.text.find(b"\n", begin)]

    def memory(self, name: str, events: Numbers) -> Numbers | None:
        """Return one of `Memory`'s numbers for some events.

        None: for one of them the trace does not say it.

        Args:
            name: A field of `Memory`.
            events: [n] which events.
        """
        key = f'"{MEMORY_KEYS[name]}" : "'.encode()
        found = np.empty(len(events), np.int64)
        for at, begin in enumerate(self.line_start[events].tolist()):
            end = self.text.find(b"\n", begin)
            first = self.text.find(key, begin, end) + len(key)
            if first < begin + len(key):
                return None
            found[at] = int(self.text[first : self.text.find(b'"', first, end)])
        return found


@dataclass(frozen=True, eq=False)
class Trace:
    """One session's trace; times in microseconds since profiling began."""

    runs: tuple[RunEvent, ...]
    """By start."""
    nodes: NodeEvents
    kernels: tuple[DeviceEvent, ...]
    """What ran on a device, by start; empty on the CPU."""
    load_us: int | None
    """Reading the model; None: the trace does not say."""
    initialize_us: int | None
    """Optimizing it and making the session."""

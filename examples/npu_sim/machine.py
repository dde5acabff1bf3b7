"""The machine: its sizes, and how long it takes for what."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """A systolic array with a local memory, fed by two DMA engines that work beside it."""

    rows: int = 16
    """Of the array: so many products are summed up in one cycle."""
    columns: int = 16
    """Of the array: so many output channels are computed at once."""
    lanes: int = 32
    """Of the vector unit: elements in one cycle."""
    local_bytes: int = 128 * 1024
    """Of the local memory; half of it is filled while the other half is computed on."""
    bytes_per_cycle: int = 16
    """Of each DMA engine."""
    transfer_latency: int = 100
    """Cycles before the first byte arrives."""
    hertz: float = 1e9

    def transfer(self, size: int) -> int:
        """Return the cycles that a DMA engine needs for so many bytes."""
        return self.transfer_latency + math.ceil(size / self.bytes_per_cycle) if size else 0

    def product(self, pixels: int, channels: int, depth: int) -> int:
        """Return the cycles for [pixels, depth] times [depth, channels]."""
        passes = math.ceil(channels / self.columns) * math.ceil(depth / self.rows)
        return passes * (pixels + self.rows + self.columns)

    def vector(self, elements: int) -> int:
        """Return the cycles for a function of so many elements."""
        return math.ceil(elements / self.lanes)


@dataclass(frozen=True)
class Step:
    """What one unit did: begin and length in cycles."""

    unit: str
    name: str
    begin: int
    cycles: int
    bytes: int = 0


@dataclass
class Timeline:
    """What the units did, one after the other; each unit does one thing at a time."""

    machine: Machine
    steps: list[Step] = field(default_factory=list)
    _free: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> int:
        """The cycle at which all that was begun is done."""
        return max(self._free.values(), default=0)

    def add(self, unit: str, name: str, cycles: int, *, after: int = 0, size: int = 0) -> int:
        """Let a unit work as soon as it is free, not before cycle `after`; returns the end."""
        with self._lock:
            begin = max(self._free.get(unit, 0), after)
            self.steps.append(Step(unit, name, begin, cycles, size))
            self._free[unit] = begin + cycles
            return begin + cycles

    def busy(self, unit: str) -> int:
        """Return how many cycles a unit worked."""
        return sum(step.cycles for step in self.steps if step.unit == unit)

    def moved(self) -> int:
        """Return how many bytes were moved between the device's memory and the local one."""
        return sum(step.bytes for step in self.steps)

    def save(self, path: Path) -> None:
        """Write the steps as a trace that ui.perfetto.dev and chrome://tracing open."""
        units = {
            unit: index for index, unit in enumerate(dict.fromkeys(s.unit for s in self.steps))
        }
        scale = 1e6 / self.machine.hertz
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 1, "tid": index, "name": "thread_name", "args": {"name": unit}}
            for unit, index in units.items()
        ]
        events.extend(
            {
                "ph": "X", "pid": 1, "tid": units[step.unit], "name": step.name,
                "ts": step.begin * scale, "dur": step.cycles * scale,
                "args": {"cycles": step.cycles, "bytes": step.bytes},
            }
            for step in self.steps
        )  # fmt: skip
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")

"""The device's memory: one block, a list of what is free in it, and streams with a clock."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import ClassVar

from examples.npu_sim.machine import Timeline
from ortkit.provider import Place, StreamedMemory


@dataclass
class Stream:
    """A queue of work; `until` is the cycle at which all of it is done."""

    until: int = 0


@dataclass
class Mark:
    """A place in a stream that another can wait for."""

    stream: Stream
    cycle: int = 0


class NpuMemory(StreamedMemory):
    """First fit in one block of the host's memory, which stands for the device's."""

    name: ClassVar[str] = "npu_sim"
    alignment: ClassVar[int] = 64

    def __init__(self, timeline: Timeline, size: int) -> None:
        self.timeline = timeline
        self.size = size
        self.peak = 0
        self._block = ctypes.create_string_buffer(size + self.alignment)
        start = -(-ctypes.addressof(self._block) // self.alignment) * self.alignment
        self._free = [(start, size)]
        self._used: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """How many bytes are in use."""
        return sum(self._used.values())

    def allocate(self, device: int, size: int, stream: object | None) -> int:
        size = -(-size // self.alignment) * self.alignment
        with self._lock:
            for index, (start, room) in enumerate(self._free):
                if room >= size:
                    rest = [(start + size, room - size)] if room > size else []
                    self._free[index : index + 1] = rest
                    self._used[start] = size
                    self.peak = max(self.peak, self.used)
                    return start
        return 0

    def free(self, device: int, address: int) -> None:
        with self._lock:
            parts = sorted([*self._free, (address, self._used.pop(address))])
            self._free = parts[:1]
            for start, size in parts[1:]:
                last, room = self._free[-1]
                if last + room == start:
                    self._free[-1] = (last, room + size)
                else:
                    self._free.append((start, size))

    def copy(self, source: Place, target: Place, size: int, stream: object | None) -> None:
        ctypes.memmove(target.address, source.address, size)
        name = "to device" if source.device is None else "from device"
        after = stream.until if isinstance(stream, Stream) else 0
        cycles = self.timeline.machine.transfer(size)
        end = self.timeline.add("host link", name, cycles, after=after)
        if isinstance(stream, Stream):
            stream.until = end

    def create_stream(self, device: int) -> Stream:
        return Stream()

    def flush(self, stream: object) -> None:
        """The simulation computes at once: only the clock has to catch up."""

    def create_notification(self, stream: object) -> Mark:
        assert isinstance(stream, Stream)
        return Mark(stream)

    def activate(self, notification: object) -> None:
        assert isinstance(notification, Mark)
        notification.cycle = notification.stream.until

    def wait_on_device(self, notification: object, stream: object) -> None:
        assert isinstance(notification, Mark)
        assert isinstance(stream, Stream)
        stream.until = max(stream.until, notification.cycle)

    def wait_on_host(self, notification: object) -> None:
        """Nothing to wait for: the work is done when it is put into a stream."""

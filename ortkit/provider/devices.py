"""Devices that a provider offers, and memory of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

#: OrtHardwareDeviceType
HARDWARE = {"cpu": 0, "gpu": 1, "npu": 2}
#: OrtMemoryInfoDeviceType
MEMORY_TYPES = {"gpu": 1, "npu": 3}


@dataclass(frozen=True)
class Place:
    """An address, and whose it is."""

    address: int
    device: int | None
    """Number of the provider's device; None: the host."""


class DeviceMemory:
    """Memory that only the device's kernels compute in; ONNX Runtime copies to and from it.

    Subclass it and say how memory is had and copied. Addresses are any nonzero numbers that the
    provider's kernels understand; Python kernels look at them as at the host's own memory, so a
    simulated device hands out such addresses. Methods are called from any thread.
    """

    name: ClassVar[str] = "device"
    """What messages and memory reports call it."""
    kind: ClassVar[str] = "npu"
    """What it is a memory of: "gpu" or "npu"."""
    alignment: ClassVar[int] = 64
    """Of addresses, in bytes."""

    def allocate(self, device: int, size: int, stream: object | None) -> int:
        """Return the address of `size` bytes, or 0 if there is no room.

        Args:
            device: Which of the provider's devices.
            size: In bytes, more than 0.
            stream: Where it is used first, one of `create_stream`'s; None if that is not known.
        """
        raise NotImplementedError

    def free(self, device: int, address: int) -> None:
        """Take back what `allocate` returned."""
        raise NotImplementedError

    def copy(self, source: Place, target: Place, size: int, stream: object | None) -> None:
        """Copy bytes, on a stream or, where it is None, before returning."""
        raise NotImplementedError


class StreamedMemory(DeviceMemory):
    """Memory of a device that works while the host does something else.

    Streams and notifications are objects of your own.
    """

    def create_stream(self, device: int) -> object:
        """Return a queue of work; a session asks for one for each run that overlaps others."""
        raise NotImplementedError

    def release_stream(self, stream: object) -> None:
        """Take it back."""

    def flush(self, stream: object) -> None:
        """Return when all that was put into the stream is done."""
        raise NotImplementedError

    def end_run(self, stream: object) -> None:
        """Note that a session's run, which used the stream, ends."""

    def create_notification(self, stream: object) -> object:
        """Return a mark that can be put into the stream."""
        raise NotImplementedError

    def release_notification(self, notification: object) -> None:
        """Take it back."""

    def activate(self, notification: object) -> None:
        """Put the mark into its stream, after what is there."""
        raise NotImplementedError

    def wait_on_device(self, notification: object, stream: object) -> None:
        """Let `stream` do nothing more until the mark's stream has come to it."""
        raise NotImplementedError

    def wait_on_host(self, notification: object) -> None:
        """Return when the mark's stream has come to it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Device:
    """One device that sessions can choose, among `onnxruntime.get_ep_devices()`."""

    hardware: str = "cpu"
    """What it is reached through: "cpu", "gpu" or "npu"; a simulated one through the CPU."""
    vendor_id: int = 0
    """PCI vendor of that hardware; 0: any."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Shown by ONNX Runtime as `ep_metadata`."""
    memory: DeviceMemory | None = None
    """None: it works in the CPU's memory."""

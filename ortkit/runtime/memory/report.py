"""What a live session takes of memory: the content of `session.memory()`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.errors import UserError
from ortkit.runtime.arenas import Arena, Unavailable, arenas_of
from ortkit.runtime.memory.devices import DeviceMemory, device_memory
from ortkit.runtime.memory.process import ProcessMemory, process_memory
from ortkit.runtime.native_library import NotAvailableError

if TYPE_CHECKING:
    import onnxruntime

    from ortkit.runtime.session import Session

_CUDA = "CUDAExecutionProvider"


@dataclass(frozen=True)
class MemoryReport:
    """What a session's arenas hold, and what the process and the device have; bytes."""

    arenas: tuple[Arena, ...]
    """Of this session; a shared one is listed in each of its sessions."""
    process: ProcessMemory | None
    """Of the whole process, everything in it included."""
    devices: tuple[DeviceMemory, ...]
    """The GPU that the session uses, if it uses one."""
    unavailable: tuple[Unavailable, ...]
    """Which numbers could not be had, and why."""

    def arena(self, memory: str) -> Arena | None:
        """Return the arena of this memory ("Cpu", "Cuda", "CudaPinned"), None if there is none."""
        return next((arena for arena in self.arenas if arena.memory == memory), None)

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return {
            "arenas": [arena.to_json() for arena in self.arenas],
            "process": None if self.process is None else self.process.to_json(),
            "devices": [device.to_json() for device in self.devices],
            "unavailable": to_json(self.unavailable),
        }


def report_of(session: Session) -> MemoryReport:
    """Read all that is known of a live session; takes some 0.2 ms after the first.

    Raises:
        UserError: The session is closed.
    """
    if getattr(session, "onnxruntime", None) is None:
        raise UserError("the session is closed", fix="make a new one")
    device = _device(session.onnxruntime)
    arenas, missing = arenas_of(session.onnxruntime, device=device or 0)
    unavailable = list(missing)
    process = None
    try:
        process = process_memory()
    except NotAvailableError as error:
        unavailable.append(Unavailable("process", str(error)))
    devices = []
    if device is not None:
        try:
            devices.append(device_memory(device))
        except NotAvailableError as error:
            unavailable.append(Unavailable(f"device {device}", str(error)))
    return MemoryReport(arenas, process, tuple(devices), tuple(unavailable))


def to_json(missing: Iterable[Unavailable]) -> list[dict[str, str]]:
    """Return what could not be had as JSON types."""
    return [{"what": unavailable.what, "reason": unavailable.reason} for unavailable in missing]


def _device(session: onnxruntime.InferenceSession) -> int | None:
    """Return the number of the session's GPU, None if it uses none."""
    if _CUDA not in session.get_providers():
        return None
    options = session.get_provider_options().get(_CUDA, {})
    return int(options.get("device_id", 0))

"""What this process has in memory, as the system counts it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ortkit.runtime.native_library import NotAvailableError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: proc(5): writing this resets the peak of resident memory.
_RESET_PEAK = "5"


@dataclass(frozen=True)
class ProcessMemory:
    """Resident memory in bytes (proc(5), status)."""

    resident: int
    """What `/usr/bin/time` and `top` call RSS."""
    anonymous: int
    """Heaps, arenas and stacks of it."""
    mapped: int
    """Pages of files of it: libraries, and weights that are used in place."""
    peak: int
    """The most that was resident since the process began or the peak was reset."""

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def process_memory() -> ProcessMemory:
    """Read what is resident now.

    Raises:
        NotAvailableError: The system does not tell.
    """
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise NotAvailableError(f"the system does not tell: {error.strerror}") from error
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        resident, anonymous, shared, mapped, peak = (
            1024 * int(fields[name].split()[0])
            for name in ("VmRSS", "RssAnon", "RssShmem", "RssFile", "VmHWM")
        )
    except (KeyError, ValueError, IndexError) as error:
        raise NotAvailableError("the system does not tell", where=str(_STATUS)) from error
    return ProcessMemory(resident, anonymous, mapped + shared, peak)


def reset_peak() -> bool:
    """Let the peak start again from what is resident now; say whether the system allows it."""
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True

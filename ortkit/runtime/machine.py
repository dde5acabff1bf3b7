"""What else the machine did while something was timed."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

#: Processors that others may use before it is said: what a quiet desktop does.
_NOTABLE_CPUS = 0.1
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_STAT = Path("/proc/stat")
#: Fields of /proc/stat's first line: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _IOWAIT, _STEAL, _FIELDS = 3, 4, 7, 8


@dataclass(frozen=True)
class MachineLoad:
    """What is known of the machine during a measurement; None where it is not readable."""

    cpus: int
    """That this process may use."""
    load_before: float | None
    """Runnable processes, mean over the minute before."""
    load_after: float | None
    others_cpus: float | None
    """Processors that other processes used, mean over the measurement."""
    stolen: float | None
    """Part of the processors' time that the hypervisor gave to others, 0 to 1."""
    governor: str | None
    """The processor's frequency governor."""

    @property
    def warning(self) -> str:
        """What makes the times doubtful, empty if nothing is known to."""
        said = []
        if self.others_cpus is not None and self.others_cpus > _NOTABLE_CPUS:
            said.append(f"other processes used {self.others_cpus:.1f} of {self.cpus} processors")
        if self.stolen is not None and self.stolen > 0.01:
            said.append(f"{self.stolen:.0%} of the processors' time went to other machines")
        if self.governor == "powersave":
            said.append("the processor's governor is powersave")
        return "; ".join(said)

    def to_json(self) -> dict[str, object]:
        """Return the fields and the warning."""
        return {**asdict(self), "warning": self.warning}


class LoadWatch:
    """Watches the machine from entering to leaving.

    The processes that the caller starts must have ended, and been waited for, by then, or be
    counted one by one.
    """

    _counted: float

    def __enter__(self) -> Self:
        """Begin."""
        self._counted = 0.0
        self._load = load_average()
        self._stat = _stat()
        self._own = _own_seconds()
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._elapsed = time.monotonic() - self._started
        self._end = _stat()
        self._own = _own_seconds() - self._own + self._counted

    def count(self, pid: int) -> None:
        """Count a process as the caller's own that is no child of it, before it ends."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        user, system = text.rpartition(")")[2].split()[11:13]
        self._counted += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def found(self) -> MachineLoad:
        """Return what was seen; to be called after leaving."""
        others = stolen = None
        if self._stat is not None and self._end is not None and self._elapsed > 0:
            spent = [after - before for before, after in zip(self._stat, self._end, strict=True)]
            tick = 1 / os.sysconf("SC_CLK_TCK")
            busy = tick * (sum(spent) - spent[_IDLE] - spent[_IOWAIT] - spent[_STEAL])
            others = max(0.0, busy - self._own) / self._elapsed
            stolen = max(0.0, spent[_STEAL] / sum(spent)) if sum(spent) > 0 else None
        return MachineLoad(
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
            self._load,
            load_average(),
            others,
            stolen,
            _governor(),
        )


def _own_seconds() -> float:
    """Return the processor time of this process and of the children that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def load_average() -> float | None:
    """Return how many processes ran or waited to run over the last minute; None if unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _stat() -> list[int] | None:
    try:
        first = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    if len(first) < 1 + _FIELDS or first[0] != "cpu":
        return None
    return [int(number) for number in first[1 : 1 + _FIELDS]]


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return None

"""How much of the machine's processors this process may use: affinity, cpusets, cgroup quotas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class CpuLimits:
    """What the system allows."""

    machine: int
    """Processors that are online."""
    allowed: int
    """Those that this process may run on, by its affinity and cpusets."""
    quota: float | None
    """Processors' time a second that the cgroup may use, the least of all levels; None: any."""

    @property
    def whole(self) -> int:
        """Threads that can run all the time, at least 1."""
        return max(1, min(self.allowed, floor(self.quota or self.allowed)))

    @property
    def text(self) -> str:
        """The limits in words."""
        parts = [f"{self.allowed} of {self.machine} processors"]
        if self.quota is not None:
            parts.append(f"the time of {self.quota:g} of them (cgroup)")
        return ", ".join(parts)

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def cpu_limits(proc: Path = _PROC) -> CpuLimits:
    """Return the limits of this process; what cannot be read limits nothing.

    Args:
        proc: Where the system says which cgroups the process is in, and where they are mounted.
    """
    machine = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = machine if affinity is None else len(affinity(0))
    quotas = [quota for folder in _cgroups(proc) if (quota := _quota(folder)) is not None]
    return CpuLimits(machine, allowed, min(quotas, default=None))


def _cgroups(proc: Path) -> Iterator[Path]:
    """Yield the folders of the process's cgroups that can have quotas, up to their roots."""
    try:
        paths = dict(_controllers((proc / "cgroup").read_text("utf-8", "replace")))
        mounts = (proc / "mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controller = "" if kind[0] == "cgroup2" else "cpu"
        if controller not in paths or (controller and controller not in kind[2].split(",")):
            continue
        top, inside = Path(fields[4]), paths[controller]
        # In a container the mount may begin at the container's own group.
        shown = fields[3].rstrip("/")
        inside = inside.removeprefix(shown) if f"{inside}/".startswith(f"{shown}/") else ""
        folder = top / inside.strip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(top))


def _controllers(text: str) -> Iterator[tuple[str, str]]:
    """Yield the path of the process's group by controller, "" for cgroup v2."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and ".." not in parts[2].split("/"):
            yield from ((name, parts[2]) for name in parts[1].split(","))


def _quota(folder: Path) -> float | None:
    """Return a cgroup's quota in processors; None if it has none."""
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text("ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text("ascii").strip()
                for name in ("quota", "period")
            )
        found = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return found if found > 0 else None

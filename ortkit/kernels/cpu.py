"""The levels of processors that kernels are built for."""

from __future__ import annotations

import platform
from pathlib import Path

from ortkit.errors import UserError
from ortkit.kernels.backend import Target

# Level -> its value of OrtkitCpu in custom_ops/native/manifest.h.
LEVELS: dict[str, int] = {
    "x86-64": 1,
    "x86-64-v2": 2,
    "x86-64-v3": 3,
    "x86-64-v4": 4,
    "aarch64": 16,
}

# What each x86-64 level adds (x86-64 psABI, "Micro-Architecture Levels"), as /proc/cpuinfo has it.
_ADDED_FLAGS: dict[str, str] = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


def machine() -> str:
    """Return "x86-64" or "aarch64", or the name of a machine that ortkit has no levels for."""
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )


def resolve(target: Target) -> Target:
    """Return `target` with "native" replaced by this machine's level.

    Raises:
        UserError: The level is unknown, or belongs to another kind of machine.
    """
    level = native_level() if target.level == "native" else target.level
    if level not in LEVELS:
        raise UserError(
            f"no kernels can be built for the processor level {level!r}",
            fix=f"use one of native, {', '.join(LEVELS)}",
        )
    if not level.startswith(machine()):
        raise UserError(
            f"kernels for {level} cannot be linked on {machine()}",
            fix=f"run ortkit on a machine of type {level.split('-v', 1)[0]}",
        )
    return Target(target.kind, level)


def native_level() -> str:
    """Return the highest level that this machine runs."""
    if machine() != "x86-64":
        return machine()
    flags = _cpu_flags()
    level = "x86-64"
    for name, added in _ADDED_FLAGS.items():
        if not flags.issuperset(added.split()):
            break
        level = name
    return level


def runs_here(level: str) -> bool:
    """Say whether this machine runs code for `level`, a name of `LEVELS` or "native"."""
    if level == "native":
        return True
    levels = [name for name in LEVELS if name.startswith(machine())]
    have = levels.index(native_level()) if native_level() in levels else -1
    return level in levels and levels.index(level) <= have


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())

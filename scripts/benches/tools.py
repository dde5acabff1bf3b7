"""The tools under test, as command lines, and how a process is run and weighed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from scripts.benches import fusers

#: Seconds between two looks at a process's memory.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Tool:
    """A program that reads one model and writes another."""

    name: str
    command: Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Usage:
    """What one process took."""

    code: int
    wall: float
    """Seconds from start to end."""
    cpu: float
    """Seconds of user and system time, which other work on the machine disturbs less."""
    peak_bytes: int
    """Largest resident size, files that are mapped included."""
    private_dirty_bytes: int
    """Largest private dirty size, sampled; 0 if it was not asked for."""
    error: str

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.code == 0


def ortkit(level: int) -> Tool:
    """Return `ortkit optimize` at a level, without kernels and verification."""
    return Tool(
        f"ortkit -l{level}",
        lambda source, target: [
            *(sys.executable, "-m", "ortkit", "optimize", "--no-verify", "--kernels", "off"),
            *("--quiet", "--level", str(level), str(source), "-o", str(target)),
        ],
    )


def peers(python: Path) -> tuple[Tool, ...]:
    """Return onnxsim and onnxslim, as their own commands in the environment of `python`."""
    return _peer(python, "onnxsim"), _peer(python, "onnxslim")


def fusing(python: Path) -> tuple[Tool, ...]:
    """Return onnxscript's fusions for ONNX Runtime and its transformers.optimizer."""
    return tuple(Tool(name, partial(fusers.command, python, name)) for name in fusers.TOOLS)


def _peer(python: Path, name: str) -> Tool:
    script = [str(python), str(python.with_name(name))]
    return Tool(name, lambda source, target: [*script, str(source), str(target)])


def run(
    command: Sequence[str], *, timeout: float = 600, watch: bool = False, most_bytes: int = 1 << 50
) -> Usage:
    """Run a command to its end and say what it took.

    Args:
        command: What to run.
        timeout: Seconds after which it is killed; its code is then 124.
        watch: Whether to sample its private dirty memory (Linux).
        most_bytes: Private dirty memory above which it is killed, if it is watched.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    dirty = [0]
    watcher = threading.Thread(target=_watch, args=(process, dirty, most_bytes), daemon=True)
    if watch:
        watcher.start()
    killed = threading.Event()

    def stop() -> None:
        killed.set()
        process.kill()

    timer = threading.Timer(timeout, stop)
    timer.start()
    assert process.stderr is not None
    error = process.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if watch:
        watcher.join()
    return Usage(
        code=124 if killed.is_set() else process.returncode,
        wall=wall,
        cpu=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
        private_dirty_bytes=dirty[0],
        error=error.strip().rpartition("\n")[2][:200],
    )


def _watch(process: subprocess.Popen[bytes], dirty: list[int], most_bytes: int) -> None:
    try:
        while True:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
            for line in text.splitlines():
                if line.startswith("Private_Dirty:"):
                    dirty[0] = max(dirty[0], int(line.split()[1]) * 1024)
            if dirty[0] > most_bytes:
                process.kill()
                return
            time.sleep(_LOOK_SECONDS)
    except (OSError, ValueError):  # it is gone
        return


def alternate(
    commands: dict[str, Sequence[str]], rounds: int, timeout: float
) -> dict[str, list[Usage]]:
    """Run each command once per round, interleaved, so that a slow minute meets all of them alike.

    A command that fails is not tried again.
    """
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            if found[name] and not found[name][-1].ok:
                continue
            found[name].append(run(command, timeout=timeout))
    return found


def middle(usages: Sequence[Usage], key: Callable[[Usage], float]) -> float | None:
    """Return the median over the runs, None if one of them failed."""
    if not usages or not all(usage.ok for usage in usages):
        return None
    return median(key(usage) for usage in usages)

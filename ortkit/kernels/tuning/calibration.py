"""What work costs on this machine: the constants of the cost model, measured once or shipped."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.errors import InternalError, UserError
from ortkit.kernels.cache_files import read_cached, write_cached

SCHEMA = "ortkit.calibration/1"
#: Less is no evidence that another processor differs: on the one whose rates they have,
#: predictions are off by 0.82 to 1.17 at the sizes that are timed. Corrected by that, MobileNetV2
#: lost kernels that make it 1.24 times as fast.
LEAST_CORRECTION = 1.25
#: From here on a factor counts as it was measured. What counts rises steadily in between, so that
#: two measurements that differ little lead to predictions that differ little.
_WHOLE_CORRECTION = LEAST_CORRECTION**2
FILE = "calibration.json"
_KEY = "calibration"


@dataclass(frozen=True)
class Calibration:
    """What one thread of a machine needs for the parts of a kernel's work, in nanoseconds.

    The defaults were measured by `ortkit calibrate` on a server processor with AVX-512
    (2026-11, onnxruntime 1.31.1, apache-tvm 0.27).
    """

    bandwidths: tuple[tuple[int, float], ...] = (
        (1 << 18, 90.0), (1 << 21, 60.0), (1 << 24, 28.0), (1 << 27, 13.5),
    )  # fmt: skip
    """By the size of what is in use, ascending: (bytes, bytes that are read or written per ns)."""
    operation_ns: float = 0.02
    """One simple operation on one float32 in a generated kernel, as `PointwiseOp.flops` counts."""
    node_ns: float = 250.0
    """Overhead of ONNX Runtime for a node of its own."""
    kernel_ns: float = 220.0
    """The same of a node that runs a generated kernel."""
    parallel_ns: float = 4500.0
    """What it costs to hand work to the other threads of a session and to wait for them."""
    kernels: tuple[tuple[str, float], ...] = ()
    """By kind of heavy operator: what our kernel takes here beside ONNX Runtime's, as a multiple
    of what its template predicts from the rates of other processors."""
    machine: str = ""
    """Where it was measured, empty for the defaults."""

    def corrected(self, kind: str, predicted: tuple[float, float]) -> tuple[float, float]:
        """Return the times of a heavy operator, ONNX Runtime's and ours, as they are here."""
        before, after = predicted
        return before, after * _counting(dict(self.kernels).get(kind, 1.0))

    def move_ns(self, count: float) -> float:
        """Return what it takes to read or write `count` bytes, which lie where they fit."""
        sizes = self.bandwidths
        rate = next((rate for size, rate in sizes if count <= size), sizes[-1][1])
        return count / rate


def _counting(factor: float) -> float:
    """Return the part of a measured factor that corrects a prediction; 1 for none."""
    if factor < 1:
        return 1 / _counting(1 / factor)
    if factor >= _WHOLE_CORRECTION:
        return factor
    return max(1.0, factor / LEAST_CORRECTION) ** 2


def falling(rates: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Return bandwidths by size, none above that of a smaller size: what fits is no slower."""
    return tuple((size, min(rate for _, rate in rates[: i + 1])) for i, (size, rate) in
                 enumerate(rates))  # fmt: skip


def machine() -> str:
    """Return what a measurement holds for: the processor and how many cores may be used."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return f"{processor()}, {cores} cores"


def stored_calibration() -> Path | None:
    """Return the file of the calibration that `load_calibration` reads; None: the defaults."""
    return _file() if load_calibration().machine else None


def load_calibration() -> Calibration:
    """Return what was measured on this machine, or the defaults where nothing usable was.

    The file is read once, and again where another has its place.
    """
    path = _file()
    try:
        state = path.stat()
    except OSError:
        return Calibration()
    found = _stored(path, (state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size))
    return found if found is not None and found.machine == machine() else Calibration()


@lru_cache(maxsize=4)
def _stored(path: Path, state: tuple[int, ...]) -> Calibration | None:
    """Return what a file says that has this inode, these times and this size."""
    del state
    return read_cached(path, _KEY, _read)


def save_calibration(found: Calibration) -> Path:
    """Write what was measured into the cache folder, whole or not at all.

    Raises:
        UserError: The folder cannot be written.
        InternalError: It says that larger sizes are faster, or that something takes no time.
    """
    if not _is_sound(found):
        raise InternalError("the calibration is not sound; nothing was written")
    path = _file()
    text = json.dumps({"schema": SCHEMA, **asdict(found)}, indent=1) + "\n"
    try:
        write_cached(path, _KEY, text)
    except OSError as error:
        raise UserError(
            f"cannot write the calibration: {error.strerror}",
            where=str(path),
            fix="set ORTKIT_CACHE to a folder that can be written",
        ) from error
    return path


def _file() -> Path:
    return env.cache_dir() / FILE


def _read(content: Any) -> Calibration | None:
    if content.pop("schema") != SCHEMA:
        return None
    rates = ((int(size), float(rate)) for size, rate in content.pop("bandwidths"))
    kernels = ((str(kind), float(factor)) for kind, factor in content.pop("kernels"))
    found = Calibration(bandwidths=tuple(rates), kernels=tuple(kernels), **content)
    return found if _is_sound(found) else None


def _is_sound(found: Calibration) -> bool:
    times = (found.operation_ns, found.node_ns, found.kernel_ns, found.parallel_ns)
    rates = [rate for _, rate in found.bandwidths]
    factors = [factor for _, factor in found.kernels]
    numbers = (*times, *rates, *factors)
    are_numbers = all(isinstance(number, int | float) and number > 0 for number in numbers)
    return bool(rates) and are_numbers and rates == sorted(rates, reverse=True)


def processor() -> str:
    """Return the processor's model, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

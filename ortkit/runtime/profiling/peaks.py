"""What a machine can do at most: the roofline that a profile is compared with.

Measured by `ortkit.measure.peaks` and kept in the cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.errors import UserError
from ortkit.kernels.cache_files import read_cached, write_cached

SCHEMA = "ortkit.peaks/1"
FILE = "peaks.json"
_KEY = "peaks"
CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Peaks:
    """Rates of one provider with one number of threads on one machine."""

    provider: str
    threads: int
    """Of a run within an operator; 0 on a device."""
    machine: str
    gflops: Mapping[str, float]
    """GFLOP/s of a large matrix product by the type of its elements."""
    bandwidths: tuple[tuple[int, float], ...]
    """(bytes in use, GB/s read and written), ascending: within the caches, then beyond."""
    tracing_us: float = 0.0
    """What tracing adds to a node's own time."""

    def move_us(self, count: float, in_use: float | None = None) -> float:
        """Return the least time in which `count` bytes are read or written.

        Args:
            count: Bytes.
            in_use: How much is used in turn; by default `count`. What does not fit into a cache
                comes from the memory each time.
        """
        size = count if in_use is None else in_use
        rate = next((rate for most, rate in self.bandwidths if size <= most), None)
        return count / (self.bandwidths[-1][1] if rate is None else rate) / 1e3

    def compute_us(self, flops: float, dtype: str) -> float | None:
        """Return the least time for so much arithmetic; None: no peak of that type is known."""
        rate = self.gflops.get(dtype)
        return None if rate is None else flops / rate / 1e3

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> Peaks:
        """Read what `dataclasses.asdict` gave.

        Raises:
            ValueError: A field is missing, or is not what it should be.
        """
        try:
            rates = tuple((int(size), float(rate)) for size, rate in given["bandwidths"])
            found = Peaks(
                str(given["provider"]),
                int(given["threads"]),
                str(given["machine"]),
                {str(name): float(rate) for name, rate in given["gflops"].items()},
                rates,
                max(0.0, float(given["tracing_us"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no peaks: {error}") from error
        positive = [rate for _, rate in rates] + list(found.gflops.values())
        if not rates or min(positive) <= 0 or list(rates) != sorted(rates):
            raise ValueError("no peaks: a rate is not above 0, or sizes do not ascend")
        return found


def threads_for(provider: str, threads: int | None) -> int:
    """Return the threads that a provider's peaks depend on: those of the CPU alone."""
    return threads or 0 if provider == CPU else 0


def load_peaks(provider: str, threads: int, machine: str) -> Peaks | None:
    """Return what was measured before; None: nothing usable was."""
    return next((peaks for peaks in _read() if _key(peaks) == (provider, threads, machine)), None)


def save_peaks(found: Peaks) -> Path:
    """Add to the file in the cache folder, which is written whole or not at all.

    Raises:
        UserError: The folder cannot be written.
    """
    path = env.cache_dir() / FILE
    kept = [peaks for peaks in _read() if _key(peaks) != _key(found)]
    content = {"schema": SCHEMA, "peaks": [asdict(item) for item in (*kept, found)]}
    try:
        write_cached(path, _KEY, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write the peaks: {error.strerror}",
            where=str(path),
            fix="set ORTKIT_CACHE to a folder that can be written",
        ) from error
    return path


def _read() -> list[Peaks]:
    def peaks(content: Any) -> list[Peaks]:
        if content["schema"] != SCHEMA:
            return []
        return [Peaks.from_json(item) for item in content["peaks"]]

    return read_cached(env.cache_dir() / FILE, _KEY, peaks) or []


def _key(peaks: Peaks) -> tuple[str, int, str]:
    return peaks.provider, peaks.threads, peaks.machine

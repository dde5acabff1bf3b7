"""How many bytes a second threads read from memory, by `read_bandwidth.cc`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".cc")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-pthread")


@dataclass(frozen=True)
class Reader:
    """The program that reads, compiled for this machine."""

    program: Path

    def rates(self, threads: int, passes: int = 8) -> list[float]:
        """Return the bytes a second of each pass, of all threads together."""
        command = [str(self.program), str(threads), str(passes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(line) for line in done.stdout.split()]


@contextmanager
def reader() -> Iterator[Reader]:
    """Yield the program, which is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "read_bandwidth"
        subprocess.run(["c++", *_FLAGS, _SOURCE, "-o", program], check=True)
        yield Reader(program)

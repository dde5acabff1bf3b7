"""How many bytes a second threads read from memory: `THREADS`; prints one number.

Each thread sums the squares of an array of its own, much larger than its part of the caches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

_BYTES, _TURNS = 256 << 20, 6


def measured(threads: int) -> float:
    """Return bytes a second, of the fastest turn; in a process of its own, as BLAS has threads."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benches.read_bandwidth", str(threads)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    """Measure in this process, and print."""
    import numpy as np

    threads = int(sys.argv[1])
    arrays = [np.ones(_BYTES // 4, np.float32) for _ in range(threads)]
    together = Barrier(threads)

    def read(number: int) -> list[tuple[float, float]]:
        found = []
        for _ in range(_TURNS):
            together.wait()
            started = time.perf_counter()
            np.dot(arrays[number], arrays[number])
            found.append((started, time.perf_counter()))
        return found

    with ThreadPoolExecutor(threads) as pool:
        turns = zip(*pool.map(read, range(threads)), strict=True)
    elapsed = [max(end for _, end in each) - min(start for start, _ in each) for each in turns]
    print(threads * _BYTES / min(elapsed))


if __name__ == "__main__":
    main()

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
    together = Barrier(threads + 1)

    def read(number: int) -> None:
        for _ in range(_TURNS):
            together.wait()
            np.dot(arrays[number], arrays[number])
            together.wait()

    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(read, number) for number in range(threads)]
        for _ in range(_TURNS):
            together.wait()
            started = time.perf_counter()
            together.wait()
            best = min(best, time.perf_counter() - started)
        for each in waiting:
            each.result()
    print(threads * _BYTES / best)


if __name__ == "__main__":
    main()

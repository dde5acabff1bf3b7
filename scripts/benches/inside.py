"""`python -m scripts.benches.inside LEVEL WARM SOURCE TARGET`: CPU seconds without start-up.

Start-up takes several times what a thousand nodes take, and varies by more than they take. So
it is not taken off afterwards but kept out: a small model goes first.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ortkit


def main(level: int, warm: Path, source: Path, target: Path) -> float:
    """Optimize `warm`, then `source`; return the CPU seconds of the second, saved too."""
    options = ortkit.OptimizeOptions(level=level, verify=False, kernels="off")
    ortkit.optimize(warm, options).save(target)
    started = time.process_time()
    ortkit.optimize(source, options).save(target)
    return time.process_time() - started


if __name__ == "__main__":
    print(main(int(sys.argv[1]), *map(Path, sys.argv[2:5])))

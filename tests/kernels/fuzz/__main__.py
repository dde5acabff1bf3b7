"""`python -m fuzz` in tests/kernels: any number of regions, each batch in a process of its own.

Region N is the same in every run. A run that was stopped goes on with `--start`; one region is
looked at with `--start N --regions 1`.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from fuzz.batch import Tally, check
from fuzz.grow import numbered_region
from fuzz.reduce import smallest
from ortkit.kernels.build.cache import KernelCache

_BATCH = 100
_SECONDS = 900


def main() -> int:
    """Run what was asked for; 1 if a kernel is wrong."""
    options = _parser().parse_args()
    if options.into is not None:
        return _work(options.start, options.regions, options.into)
    total, failed, done = Tally(), 0, options.start
    ranges = list(_ranges(options.start, options.start + options.regions))
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for (start, count), (tally, texts) in zip(
                ranges, pool.map(lambda one: _batch(*one), ranges), strict=True
            ):
                total.add(tally)
                failed += len(texts)
                done = start + count
                for text in texts:
                    _say(f"---- {text}\n", sys.stdout)
                _say(f"{done}: {total.built} built, {failed} wrong", sys.stderr)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    _say(f"{total.text()}\n{failed} wrong; goes on with --start {done}", sys.stdout)
    return int(failed > 0)


def _say(text: str, into: TextIO) -> None:
    into.write(f"{text}\n")
    into.flush()


def _ranges(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut at the hundreds, where the opset changes."""
    while start < end:
        count = min(_BATCH - start % _BATCH, end - start)
        yield start, count
        start += count


def _batch(start: int, count: int) -> tuple[Tally, list[str]]:
    """Run a batch in a process; where that crashes, find the regions that do it."""
    with tempfile.TemporaryDirectory(prefix="ortkit-fuzz-") as folder:
        result = Path(folder) / "result"
        flags = ["--start", str(start), "--regions", str(count), "--into", str(result)]
        command = [sys.executable, "-X", "faulthandler", "-m", "fuzz", *flags]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
            problem = f"ended with {ended.returncode}: {ended.stderr.strip()[-1500:]}"
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_SECONDS} seconds"
        if result.is_file():
            tally, texts = pickle.loads(result.read_bytes())
            return tally, texts
    if count == 1:
        return Tally(regions=1), [f"{problem}\n{numbered_region(start).text()}"]
    parts = [_batch(start, count // 2), _batch(start + count // 2, count - count // 2)]
    total = Tally()
    for tally, _ in parts:
        total.add(tally)
    return total, [text for _, texts in parts for text in texts]


def _work(start: int, count: int, into: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="ortkit-fuzz-cache-") as folder:
        cache = KernelCache(Path(folder))
        findings, tally = check([numbered_region(n) for n in range(start, start + count)], cache)
        texts = [smallest(finding, cache).text() for finding in findings]
    into.write_bytes(pickle.dumps((tally, texts)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m fuzz", description=__doc__)
    add = parser.add_argument
    add("--regions", type=int, default=5000, help="how many (default: 5000)")
    add("--start", type=int, default=0, help="number of the first (default: 0)")
    add("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    add("--into", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

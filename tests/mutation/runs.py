"""Runs the tests of a file against changes of it, and says which change no test noticed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from tests.mutation.mutants import Mutant, mutants_of, parses

ROOT = Path(__file__).parents[2]
PACKAGES = ("ortkit/kernels", "ortkit/fusion", "custom_ops")
_HOOK = Path(__file__).parent / "hook"
#: By the start of a path, the tests that are run where no test file imports the module.
_TESTS = {
    "ortkit/kernels/triton": "tests/kernels/triton",
    "ortkit/kernels": "tests/kernels",
    "ortkit/fusion": "tests/fusion",
    "ortkit/ops": "tests/passes",
    "ortkit/rewrite": "tests/rewrite",
    "ortkit/passes": "tests/passes",
    "custom_ops/triton": "tests/kernels/triton",
    "custom_ops/tvm": "tests/kernels",
    "custom_ops": "tests/extend",
}
#: A change that makes tests take so many times as long, and seconds more, is noticed.
_SLACK, _SLACK_SECONDS = 3.0, 60.0
#: Seconds that tests take at most without a change.
_HANGS = 3600.0
Verdict: TypeAlias = Literal["killed", "survived", "timed out"]


@dataclass(frozen=True)
class Run:
    """What tests said of one change of a file."""

    file: str
    mutant: Mutant
    verdict: Verdict

    @property
    def package(self) -> str:
        """The row of the table."""
        return next((each for each in PACKAGES if self.file.startswith(each)), self.file)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.file}:{self.mutant.line}: {self.mutant.what}"


def sample(
    count: int, seed: int = 0, packages: Sequence[str] = PACKAGES
) -> list[tuple[str, Mutant]]:
    """Draw changes, as many of each package."""
    drawn = []
    for package in PACKAGES:
        places = [
            (str(path.relative_to(ROOT)), mutant)
            for path in sorted((ROOT / package).rglob("*.py"))
            for mutant in mutants_of(path.read_text(encoding="utf-8"))
        ]
        random.Random(seed).shuffle(places)
        valid = (each for each in places if parses(each[1].of(_source(each[0]))))
        drawn += islice(valid, -(-count // len(PACKAGES)))
    return drawn[:count]


@cache
def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def run(file: str, mutant: Mutant, tests: Sequence[str] | None = None) -> Run:
    """Run the tests of a file against one change of it.

    Raises:
        AssertionError: The tests fail without any change.
    """
    wanted = tuple(tests or relevant_tests(file))
    limit = _SLACK_SECONDS + _SLACK * _seconds(wanted)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        changed = Path(folder) / "source.py"
        changed.write_text(mutant.of(_source(file)), encoding="utf-8")
        target = {"MUTATED_FILE": os.path.realpath(ROOT / file), "MUTATED_SOURCE": str(changed)}
        return Run(file, mutant, _verdict(wanted, target, limit))


@cache
def _seconds(tests: tuple[str, ...]) -> float:
    """Return how long tests take without a change."""
    started = time.monotonic()
    verdict = _verdict(tests, {}, _HANGS)
    assert verdict == "survived", f"without a change, {' '.join(tests)}: {verdict}"
    return time.monotonic() - started


def relevant_tests(file: str) -> list[str]:
    """Return the test files that import a module; the folder of its package if none does."""
    own = file if file.startswith("ortkit/") else f"ortkit/{file}"
    module = own.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    wanted = (f"from {module} import", f"import {module}", f"from {package} import {name}\n")
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(each in path.read_text(encoding="utf-8") for each in wanted)
    ]
    found.sort(key=lambda each: name not in each)  # those that are called like it come first
    return found or [_TESTS[max(key for key in _TESTS if file.startswith(key))]]


def _verdict(tests: Sequence[str], target: Mapping[str, str], limit: float) -> Verdict:
    """Run tests with a change, or none, for `limit` seconds at most."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
               "-m", "not slow", *tests]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="mutation-") as cache_folder:
        surroundings = {
            **os.environ,
            **target,
            "PYTHONPATH": os.pathsep.join([str(_HOOK), os.environ.get("PYTHONPATH", "")]),
            "ORTKIT_CACHE": cache_folder,  # kernels that a change makes are no good ones
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=surroundings, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return "survived" if process.wait(limit) == 0 else "killed"
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def runs(count: int, seed: int = 0) -> Iterator[Run]:
    """Run a sample."""
    for file, mutant in sample(count, seed):
        yield run(file, mutant)


def table(found: Sequence[Run]) -> str:
    """Return how many were killed and survived, by package, and the survivors."""
    lines = [f"{'package':20} {'killed':>7} {'survived':>9} {'share':>7}"]
    for package in dict.fromkeys(each.package for each in found):
        counts = Counter(each.verdict == "survived" for each in found if each.package == package)
        share = 100 * counts[False] / counts.total()
        lines.append(f"{package:20} {counts[False]:7} {counts[True]:9} {share:6.1f}%")
    return "\n".join([*lines, *(str(each) for each in found if each.verdict == "survived")])


def main() -> None:
    """Run a sample of `COUNT` changes, or those of some lines: `FILE FIRST LAST [TEST...]`."""
    if len(sys.argv) == 2:
        found = []
        for each in runs(int(sys.argv[1])):
            found.append(each)
            print(each, flush=True)  # noqa: T201
        print(table(found))  # noqa: T201
        return
    file, first, last, *tests = sys.argv[1:]
    for mutant in mutants_of(_source(file)):
        if int(first) <= mutant.line <= int(last) and parses(mutant.of(_source(file))):
            print(run(file, mutant, tests), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

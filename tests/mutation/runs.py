"""Runs the tests of a file against changes of it, and says which change no test noticed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tests.mutation.mutants import Mutant, mutants_of

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
#: Seconds; a change that makes tests take longer is noticed.
TIME_LIMIT = 900.0


@dataclass(frozen=True)
class Run:
    """What tests said of one change of a file."""

    file: str
    mutant: Mutant
    verdict: Literal["killed", "survived", "timed out"]

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
        drawn += random.Random(seed).sample(places, -(-count // len(PACKAGES)))
    return drawn[:count]


def run(file: str, mutant: Mutant, tests: Sequence[str] | None = None) -> Run:
    """Run the tests of a file against one change of it.

    Raises:
        AssertionError: The tests fail without any change.
    """
    wanted = tuple(tests or relevant_tests(file))
    assert _passes(file, wanted), f"the tests of {file} fail as it is"
    source = (ROOT / file).read_text(encoding="utf-8")
    return Run(file, mutant, _verdict(file, mutant.of(source), wanted))


@cache
def _passes(file: str, tests: tuple[str, ...]) -> bool:
    source = (ROOT / file).read_text(encoding="utf-8")
    return _verdict(file, source, tests) == "survived"


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
    return found or [_TESTS[max(key for key in _TESTS if file.startswith(key))]]


def _verdict(
    file: str, source: str, tests: Sequence[str]
) -> Literal["killed", "survived", "timed out"]:
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        changed = Path(folder) / "source.py"
        changed.write_text(source, encoding="utf-8")
        surroundings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_HOOK), os.environ.get("PYTHONPATH", "")]),
            "MUTATED_FILE": os.path.realpath(ROOT / file),
            "MUTATED_SOURCE": str(changed),
            "ORTKIT_CACHE": str(Path(folder) / "cache"),  # kernels of a change are no good ones
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                   "-m", "not slow", *tests]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=surroundings, capture_output=True, timeout=TIME_LIMIT,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timed out"
    return "survived" if done.returncode == 0 else "killed"


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
    for mutant in mutants_of((ROOT / file).read_text(encoding="utf-8")):
        if int(first) <= mutant.line <= int(last):
            print(run(file, mutant, tests), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

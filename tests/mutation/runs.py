"""Runs the tests of a file against changes of it, and says which change no test noticed."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from tests.mutation.mutants import Mutant, function_at, mutants_of, parses
from tests.mutation.warm import Job, Server

ROOT = Path(__file__).parents[2]
PACKAGES = ("ortkit/kernels", "ortkit/fusion", "custom_ops")
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
#: Seconds of the tests that are run against one change, those that call it, and the others.
_MOST_SECONDS = 20.0
#: Changes here do not change the code of kernels, so that known ones may be used.
_MAKES_NO_CODE = ("ortkit/fusion", "ortkit/ops", "ortkit/rewrite", "ortkit/passes")
#: The status of pytest where all tests were left out.
_NO_TESTS = 5
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
    """Draw changes, as many of each package and of each in turn."""
    drawn = []
    for package in PACKAGES:
        places = [
            (str(path.relative_to(ROOT)), mutant)
            for path in sorted((ROOT / package).rglob("*.py"))
            for mutant in mutants_of(path.read_text(encoding="utf-8"))
        ]
        random.Random(seed).shuffle(places)
        valid = (each for each in places if parses(each[1].of(_source(each[0]))))
        drawn.append(islice(valid, -(-count // len(PACKAGES))))
    return [each for row in zip(*drawn, strict=True) for each in row][:count]


@cache
def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


class Runner:
    """Runs tests against changes, those first that call the changed function."""

    def __enter__(self) -> Self:
        """Start the process that runs tests."""
        self._stack = ExitStack()
        self._server = self._stack.enter_context(Server())
        folder = tempfile.TemporaryDirectory(prefix="mutation-")
        self._folder = Path(self._stack.enter_context(folder))
        self._known: dict[str, dict[str, _Test]] = {}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self._stack.close()

    def run(self, file: str, mutant: Mutant, tests: Sequence[str] | None = None) -> Run:
        """Run the tests of a file against one change of it.

        Raises:
            AssertionError: The tests fail without any change.
        """
        known: dict[str, _Test] = {}
        for each in tests or relevant_tests(file):
            known |= self._tests(each)
        place = (os.path.realpath(ROOT / file), function_at(_source(file), mutant.line))
        calling = [name for name, test in known.items() if place in test.calls]
        # What runs in other processes is called by no test. Then, and where those that call it do
        # not notice, all are run.
        for wanted in (calling, [name for name in known if name not in calling]):
            chosen = _cheapest(wanted, known)
            if chosen and (verdict := self._verdict(chosen, known, file, mutant)) != "survived":
                return Run(file, mutant, verdict)
        return Run(file, mutant, "survived")

    def _verdict(
        self, tests: Sequence[str], known: Mapping[str, _Test], file: str, mutant: Mutant
    ) -> Verdict:
        changed = self._folder / "source.py"
        changed.write_text(mutant.of(_source(file)), encoding="utf-8")
        target = {"MUTATED_FILE": os.path.realpath(ROOT / file), "MUTATED_SOURCE": str(changed)}
        limit = _SLACK_SECONDS + _SLACK * sum(known[name].seconds for name in tests)
        with self._cache(is_kept=file.startswith(_MAKES_NO_CODE)) as surroundings:
            job: Job = {
                "tests": list(tests), "surroundings": {**target, **surroundings},
                "seconds": limit, "calls": "",
            }  # fmt: skip
            status = self._server.run(job)
        return "timed out" if status is None else "killed" if status else "survived"

    def _tests(self, path: str) -> dict[str, _Test]:
        """Run the tests of a file or folder without a change, once.

        Raises:
            AssertionError: They fail.
        """
        if path not in self._known:
            calls = self._folder / "calls.json"
            with self._cache(is_kept=True) as surroundings:
                job: Job = {
                    "tests": [path], "surroundings": surroundings, "seconds": _HANGS,
                    "calls": str(calls),
                }  # fmt: skip
                status = self._server.run(job)
            assert status in (0, _NO_TESTS), f"without a change, {path}: {status}"
            found = json.loads(calls.read_text(encoding="utf-8"))
            self._known[path] = {
                name: _Test(test["seconds"], frozenset(map(tuple, test["calls"])))
                for name, test in found.items()
            }
        return self._known[path]

    @contextmanager
    def _cache(self, *, is_kept: bool) -> Iterator[dict[str, str]]:
        """Yield what names a folder for compiled kernels, a new one where they may be no good."""
        if is_kept:
            yield {"ORTKIT_CACHE": str(self._folder / "cache")}
            return
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            yield {"ORTKIT_CACHE": folder}


@dataclass(frozen=True)
class _Test:
    """What is known of a test without a change."""

    seconds: float
    calls: frozenset[tuple[str, int]]


def _cheapest(tests: Sequence[str], known: Mapping[str, _Test]) -> list[str]:
    """Return tests, the shortest first, as far as they take no longer than the limit together."""
    order = sorted(tests, key=lambda name: known[name].seconds)
    ends = accumulate(known[name].seconds for name in order)
    return [name for name, end in zip(order, ends, strict=True) if end <= _MOST_SECONDS]


def run(file: str, mutant: Mutant, tests: Sequence[str] | None = None) -> Run:
    """Run the tests of a file against one change of it; see `Runner.run`."""
    with Runner() as runner:
        return runner.run(file, mutant, tests)


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


def runs(count: int, seed: int = 0) -> Iterator[Run]:
    """Run a sample."""
    with Runner() as runner:
        for file, mutant in sample(count, seed):
            yield runner.run(file, mutant)


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
    with Runner() as runner:
        for mutant in mutants_of(_source(file)):
            if int(first) <= mutant.line <= int(last) and parses(mutant.of(_source(file))):
                print(runner.run(file, mutant, tests), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

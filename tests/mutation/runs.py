"""Runs tests against changes of sources, and says which change no test noticed."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Literal, Self, TypeAlias

from tests.mutation import lines
from tests.mutation.lines import Measured
from tests.mutation.mutants import Mutant, function_at, mutants_of, parses
from tests.mutation.tree import ROOT, Tree
from tests.mutation.warm import TIMED_OUT, Job, Server

PACKAGES = ("ortkit/kernels", "ortkit/fusion", "custom_ops")
#: Below it, verdicts and the lines that tests run are kept, so that an interrupted run goes on.
_FOLDER = ROOT / "build" / "mutation"
#: Folders of tests that are run against changes, with all test files that import a changed module.
_TESTS = ("tests/kernels", "tests/fusion", "tests/extend", "tests/precision")
#: These need a GPU, or run other tests.
_LEFT_OUT = ("tests/gpu", "tests/mutation", "tests/benches", "tests/house", "tests/cli")
#: A change that makes tests take so many times as long, and seconds more, is noticed.
_SLACK, _SLACK_SECONDS = 6.0, 60.0
#: Seconds that a file of tests takes at most without a change.
_HANGS = 1800.0
#: Seconds of the tests that are run against one change, by their times without one, and how many.
_MOST_SECONDS = 60.0
_MOST_TESTS = 400
#: Cases of one test function that come before the first case of a slower one.
_CASES_FIRST = 2
#: Changes here do not change the code of kernels, so that known ones may be used.
_MAKES_NO_CODE = ("ortkit/fusion",)
_SURVIVED, _NO_TESTS = 0, 5  # what pytest returns
Verdict: TypeAlias = Literal["killed", "survived", "timed out", "not run", "too busy"]


@dataclass(frozen=True)
class Run:
    """What tests said of one change of a file.

    Args:
        file: Below the root.
        mutant: The change.
        verdict: "not run": no test runs the line. "too busy": tests do not end in time without
            the change either; it is to be run again.
        by: The test that failed.
        tests: How many were to be run.
        seconds: What they took.
    """

    file: str
    mutant: Mutant
    verdict: Verdict
    by: str = ""
    tests: int = 0
    seconds: float = 0.0

    @property
    def package(self) -> str:
        """The row of the table."""
        return next((each for each in PACKAGES if self.file.startswith(each)), self.file)

    @property
    def is_killed(self) -> bool:
        """Whether the tests noticed the change."""
        return self.verdict in ("killed", "timed out")

    def __str__(self) -> str:
        text = f"{self.verdict}: {self.file}:{self.mutant.line}: {self.mutant.what}"
        return f"{text} ({self.tests} tests, {self.seconds:.0f} s) {self.by}".rstrip()


def sample(count: int, seed: int = 0) -> list[tuple[str, Mutant]]:
    """Draw changes, as many of each package and of each in turn."""
    drawn = []
    for package in PACKAGES:
        places = list(_changes(package))
        random.Random(seed).shuffle(places)
        valid = (each for each in places if parses(each[1].of(_source(each[0]))))
        drawn.append(islice(valid, -(-count // len(PACKAGES))))
    return [each for row in zip(*drawn, strict=True) for each in row][:count]


@cache
def _changes(package: str) -> tuple[tuple[str, Mutant], ...]:
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple((file, mutant) for file in files for mutant in mutants_of(_source(file)))


class Runner:
    """Runs tests against changes, each in a copy of the tree that belongs to one worker."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        """Keep what is found in a folder, and run tests of so many changes at the same time."""
        self._folder = folder.resolve()
        self._workers = workers

    def __enter__(self) -> Self:
        """Start the processes that run tests."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._servers: SimpleQueue[tuple[Tree, Server]] = SimpleQueue()
        for _ in range(self._workers):
            tree = self._stack.enter_context(Tree())
            self._servers.put((tree, self._stack.enter_context(Server(tree))))
        work = self._stack.enter_context(TemporaryDirectory(prefix="mutation-"))
        self._work = Path(work)
        self._kernels = self._work / "kernels"
        self._verdicts = Verdicts(self._folder / "verdicts.jsonl")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them."""
        self._stack.close()

    def run_all(
        self, changes: Sequence[tuple[str, Mutant]], *, again: bool = False
    ) -> Iterator[Run]:
        """Run tests against changes; those whose verdict is kept are not run.

        Args:
            changes: Files and changes of them.
            again: Run those again that no test noticed.
        """
        kept = [self._verdicts.of(file, mutant) for file, mutant in changes]
        open_ = [
            change
            for change, run in zip(changes, kept, strict=True)
            if run is None or (again and not run.is_killed)
        ]
        yield from (run for run in kept if run and (run.is_killed or not again))
        if not open_:
            return
        tests = self.tests(files_of_tests({file for file, _ in changes}))

        def judge(change: tuple[str, Mutant]) -> Run:
            run = self.run(*change, tests)
            self._verdicts.add(run)
            return run

        with ThreadPoolExecutor(self._workers) as pool:
            yield from pool.map(judge, open_)

    def tests(self, files: Iterable[str]) -> list[Measured]:
        """Return what is known of the tests of files; those that are new are run first."""
        kept = [(each, self._folder / "lines" / _digest(each)) for each in files]
        with ThreadPoolExecutor(self._workers) as pool:
            found = list(pool.map(lambda pair: self._tests(*pair), kept))
        return [test for tests in found for test in tests]

    def run(self, file: str, mutant: Mutant, tests: Sequence[Measured]) -> Run:
        """Run those of the tests that run the changed line, as far as time allows."""
        function = function_at(_source(file), mutant.line)
        chosen = cheapest(lines.running(tests, file, mutant.line, function))
        if not chosen:
            return Run(file, mutant, "not run")
        started = perf_counter()
        limit = _SLACK_SECONDS + _SLACK * sum(test.seconds for test in chosen)
        names = [test.name for test in chosen]
        is_known = file.startswith(_MAKES_NO_CODE)
        verdict: Verdict = "killed"
        with self._server() as (tree, server):
            with tree.changed(file, mutant.of(_source(file))):
                status, by = self._status(server, names, limit, uses_known_kernels=is_known)
            if status == _SURVIVED:
                verdict = "survived"
            elif not by:  # no test failed: it is the change, or the machine is busy
                verdict = "timed out" if status == TIMED_OUT else "killed"
                status, _ = self._status(server, names, limit / 2, uses_known_kernels=is_known)
                verdict = verdict if status == _SURVIVED else "too busy"
        return Run(file, mutant, verdict, by, len(chosen), perf_counter() - started)

    def _tests(self, path: str, kept: Path) -> list[Measured]:
        """Run the tests of a file without a change, unless that was done."""
        if not (kept / "tests.json").exists():
            kept.mkdir(parents=True, exist_ok=True)
            lines.prepare(kept)
            with self._server() as (_, server):
                status, _ = self._status(server, [path], _HANGS, noted=kept)
            if status not in (0, 1, _NO_TESTS) or not (kept / "tests.json").exists():
                raise RuntimeError(f"without a change, {path}: pytest ended with {status}")
        return lines.read(kept)

    def _status(
        self,
        server: Server,
        tests: Sequence[str],
        seconds: float,
        *,
        noted: Path | None = None,
        uses_known_kernels: bool = False,
    ) -> tuple[int, str]:
        """Return the status of pytest and the test that failed first."""
        with TemporaryDirectory(dir=self._work) as folder:
            report = Path(folder) / "report"
            kernels = self._kernels if uses_known_kernels else Path(folder) / "kernels"
            temporary = Path(folder) / "temporary"
            temporary.mkdir()
            surroundings = {"ORTKIT_CACHE": str(kernels), "TMPDIR": str(temporary)}
            if noted:
                surroundings |= {
                    "MUTATION_LINES": str(noted), "MUTATION_PACKAGES": ":".join(PACKAGES),
                }  # fmt: skip
            job: Job = {
                "tests": list(tests), "surroundings": surroundings, "seconds": seconds,
                "report": str(report), "lines": str(noted or ""),
            }  # fmt: skip
            status = server.run(job)
            return status, report.read_text(encoding="utf-8") if report.exists() else ""

    @contextmanager
    def _server(self) -> Iterator[tuple[Tree, Server]]:
        pair = self._servers.get()
        try:
            yield pair
        finally:
            self._servers.put(pair)


class Verdicts:
    """A file with a line for each change that was judged; the last one holds."""

    def __init__(self, path: Path) -> None:
        """Read it, if it is there."""
        self._path = path
        self._lock = Lock()
        rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._found = {row["key"]: row for row in map(json.loads, rows)}

    def of(self, file: str, mutant: Mutant) -> Run | None:
        """Return what was found of a change of a source that is still the same."""
        row = self._found.get(self._key(file, mutant))
        if row is None:
            return None
        return Run(file, mutant, row["verdict"], row["by"], row["tests"], row["seconds"])

    def add(self, run: Run) -> None:
        """Write what was found, unless the machine was too busy."""
        if run.verdict == "too busy":
            return
        row = {"key": self._key(run.file, run.mutant), **asdict(run)}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _key(self, file: str, mutant: Mutant) -> str:
        return f"{file} {_digest(file)} {mutant.start} {mutant.end} {mutant.text}"


def cheapest(tests: Sequence[Measured]) -> list[Measured]:
    """Return tests, the shortest first, as far as they take no longer than the limit together.

    Of one function a few cases come first: the others are likely to say the same.
    """
    order = sorted(tests, key=lambda test: test.seconds)
    cases: Counter[str] = Counter()
    turns: defaultdict[int, list[Measured]] = defaultdict(list)
    for test in order:
        turns[cases[test.function] // _CASES_FIRST].append(test)
        cases[test.function] += 1
    chosen, seconds = [], 0.0
    for test in (test for turn in sorted(turns) for test in turns[turn]):
        if chosen and seconds + test.seconds > _MOST_SECONDS:
            continue
        chosen.append(test)
        seconds += test.seconds
    return chosen[:_MOST_TESTS]


def files_of_tests(changed: Iterable[str]) -> list[str]:
    """Return the test files that are run against changes of sources."""
    own = {
        str(path.relative_to(ROOT))
        for folder in _TESTS
        for path in (ROOT / folder).rglob("test_*.py")
    }
    others = {test for file in changed for test in _importing(file)}
    return sorted(test for test in own | others if not test.startswith(_LEFT_OUT))


def _importing(file: str) -> list[str]:
    """Return the test files that import a module."""
    own = file if file.startswith("ortkit/") else f"ortkit/{file}"
    module = own.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    wanted = (f"from {module} import", f"import {module}", f"from {package} import {name}\n")
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(each in _source(str(path.relative_to(ROOT))) for each in wanted)
    ]


def folder_of(*packages: str) -> Path:
    """Return where verdicts are kept that hold as long as no source of these packages changes."""
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    contents = (_digest(str(path.relative_to(ROOT))) for path in sorted(files))
    return _FOLDER / hashlib.sha256("".join(contents).encode()).hexdigest()[:12]


@cache
def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(f"{file}\n{_source(file)}".encode()).hexdigest()[:24]


def table(found: Sequence[Run]) -> str:
    """Return how many were killed and survived, by package, and the survivors."""
    lines = [f"{'package':20} {'killed':>7} {'survived':>9} {'share':>7}"]
    for package in dict.fromkeys(each.package for each in found):
        counts = Counter(each.is_killed for each in found if each.package == package)
        share = 100 * counts[True] / counts.total()
        lines.append(f"{package:20} {counts[True]:7} {counts[False]:9} {share:6.1f}%")
    return "\n".join([*lines, *(str(each) for each in found if not each.is_killed)])


def main() -> None:
    """Run a sample, or all changes of some lines."""
    parser = argparse.ArgumentParser("python -m tests.mutation.runs", description=main.__doc__)
    parser.add_argument("what", nargs="+", help="COUNT of a sample, or FILE FIRST LAST")
    parser.add_argument("--seed", type=int, default=0, help="which sample (0)")
    parser.add_argument("--workers", type=int, default=1, help="tests run at the same time (1)")
    parser.add_argument("--again", action="store_true", help="run survivors again")
    parser.add_argument("--folder", type=Path, help="where verdicts are kept, to go on")
    given = parser.parse_args()
    if len(given.what) == 1:
        changes = sample(int(given.what[0]), given.seed)
    else:
        file, first, last = given.what
        changes = [
            (file, mutant)
            for mutant in mutants_of(_source(file))
            if int(first) <= mutant.line <= int(last) and parses(mutant.of(_source(file)))
        ]
    found = []
    with Runner(given.folder or folder_of(*PACKAGES), given.workers) as runner:
        for each in runner.run_all(changes, again=given.again):
            found.append(each)
            print(each, flush=True)  # noqa: T201
    print(table(found))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())

"""What is known of the tests of a file: the lines that each runs, and how long it takes."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import pytest

from tests.mutation.hook import WHOLE, Recorder

#: What runs while tests are collected, and for fixtures that several of them share.
_SHARED = 0


@dataclass(frozen=True)
class Measured:
    """One test without a change.

    Args:
        name: As pytest names it.
        seconds: What it takes, notes included.
        lines: The lines that it runs, by file.
    """

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]

    @property
    def function(self) -> str:
        """The name without parameters."""
        return self.name.partition("[")[0]


class Marks:
    """A plugin of pytest that says which test runs, for `hook`, and writes `tests.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._write(_SHARED)
        packages = tuple(os.environ["MUTATION_PACKAGES"].split(":"))
        Recorder(folder, Path(os.environ["MUTATION_TREE"]), packages).start()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Mark a test."""
        number = self._numbers.setdefault(item.nodeid, len(self._numbers) + 1)
        started = perf_counter()
        self._write(number)
        yield
        self._write(_SHARED)
        self._seconds[item.nodeid] = perf_counter() - started

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Mark what several tests share."""
        before = self._number
        if fixturedef.scope != "function":
            self._write(_SHARED)
        yield
        self._write(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure: such a test says nothing of a change."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write numbers and times of the tests that passed."""
        tests = {
            name: [self._numbers[name], seconds]
            for name, seconds in self._seconds.items()
            if name not in self._failed
        }
        (self._folder / "tests.json").write_text(json.dumps(tests), encoding="utf-8")

    def _write(self, number: int) -> None:
        self._number = number
        with (self._folder / "current").open("r+b") as file:
            file.write(number.to_bytes(8, "little"))


def prepare(folder: Path) -> None:
    """Make what `Marks` and `hook` write to."""
    (folder / "current").write_bytes(bytes(8))
    (folder / "lines").touch()


def read(folder: Path) -> list[Measured]:
    """Return what was noted of the tests that passed."""
    lines: defaultdict[int, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in (folder / "lines").read_text(encoding="utf-8").splitlines():
        number, file, *found = row.split(" ")
        lines[int(number)][file].update(map(int, found))
    tests = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
    return [
        Measured(name, seconds, _merged(lines[number], lines[_SHARED]))
        for name, (number, seconds) in tests.items()
    ]


def _merged(*found: defaultdict[str, set[int]]) -> dict[str, frozenset[int]]:
    files = {file for each in found for file in each}
    return {file: frozenset().union(*(each.get(file, ()) for each in found)) for file in files}


def running(tests: Sequence[Measured], file: str, line: int, function: range) -> list[Measured]:
    """Return the tests that run a line; else its function; else those that read its text.

    What stands outside of functions runs once in a process: all tests that run anything of the
    file may depend on it.
    """
    if not function:
        return [test for test in tests if file in test.lines]
    for lines in ({line}, set(function), {WHOLE}):
        if found := [test for test in tests if lines & test.lines.get(file, frozenset())]:
            return found
    return []

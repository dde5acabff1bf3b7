"""Which functions each test calls in its own process, and how long it takes."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
#: A file and the first line of a function.
Place: TypeAlias = tuple[str, int]


class Calls:
    """A plugin of pytest that writes, by test, its seconds and the functions that it calls.

    What fixtures of a module or more call, and what a module calls when it is collected, counts
    for all tests of the module.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._places: set[Place] = set()
        self._shared: dict[str, set[Place]] = defaultdict(set)
        self._found: dict[str, tuple[str, float, set[Place]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Note what a module calls."""
        with self._noted(self._shared[_module(collector.nodeid)]):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Note what a fixture calls that several tests share."""
        if fixturedef.scope == "function":
            yield
            return
        with self._noted(self._shared[_module(request.node.nodeid)]):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note what a test calls."""
        started = time.perf_counter()
        places: set[Place] = set()
        with self._noted(places):
            yield
        seconds = time.perf_counter() - started
        self._found[item.nodeid] = (_module(item.nodeid), seconds, places)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        found = {
            test: {"seconds": seconds, "calls": sorted(places | self._shared[module])}
            for test, (module, seconds, places) in self._found.items()
        }
        self._file.write_text(json.dumps(found), encoding="utf-8")

    @contextmanager
    def _noted(self, places: set[Place]) -> Iterator[None]:
        before, self._places = self._places, places
        outer = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(outer)
            self._places = before

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        self._places.add((code.co_filename, code.co_firstlineno))


def _module(node: str) -> str:
    return node.partition("::")[0]

"""A process with the packages that tests need imported, which forks one that runs tests per job.

It reads jobs from its input and writes answers to its output, a line of JSON each. No module of
ortkit is imported before a fork, so that each process imports the changed one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict

import pytest

from tests.mutation.tree import Tree

_IMPORTED = (
    "numpy",
    "ml_dtypes",
    "onnx",
    "onnx.parser",
    "onnx.helper",
    "onnx_ir",
    "onnxruntime",
)
#: The status of tests that take longer than they may.
TIMED_OUT = -1000


class Job(TypedDict):
    """Tests to run."""

    tests: list[str]
    surroundings: dict[str, str]
    """Environment variables: the folder of compiled kernels, where lines are noted."""
    seconds: float
    """For all of them."""
    report: str
    """A file for the test that fails first."""
    lines: str
    """A folder for the lines that each test runs; empty: they are not noted."""


class Server:
    """The process, seen from outside; it runs tests in a copy of the working tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.warm"], cwd=self._tree.path,
            env={**os.environ, **self._tree.surroundings},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended by itself
            self._process.stdin.close()
        self._process.wait()

    def run(self, job: Job) -> int:
        """Return the exit status of pytest, or `TIMED_OUT`.

        Raises:
            RuntimeError: The process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that runs tests ended")
        return int(line)


class _FirstFailure:
    """A plugin of pytest that writes the name of what fails first."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid, encoding="utf-8")


def main() -> None:
    """Answer jobs until the input ends."""
    for name in _IMPORTED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(f"{_forked(json.loads(line))}\n")
        answers.flush()


def _forked(job: Job) -> int:
    child = os.fork()
    if not child:
        status = 70
        try:
            status = _run(job)
        finally:
            os._exit(status)
    end = time.monotonic() + job["seconds"]
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return TIMED_OUT
    finally:
        with suppress(ProcessLookupError):  # what its tests started
            os.killpg(child, signal.SIGKILL)


def _run(job: Job) -> int:
    """Run tests in a forked process, which leads a group of its own."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ.update(job["surroundings"])
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    plugins: list[Any] = [_FirstFailure(Path(job["report"]))]
    if job["lines"]:
        from tests.mutation.lines import Marks

        plugins.append(Marks(Path(job["lines"])))
        options.remove("-x")
    else:
        sys.dont_write_bytecode = True  # of a changed source
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return int(pytest.main([*options, *job["tests"]], plugins))


if __name__ == "__main__":
    main()

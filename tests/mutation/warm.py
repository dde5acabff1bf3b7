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

HOOK = Path(__file__).parent / "hook"
_ROOT = Path(__file__).parents[2]
_IMPORTED = (
    "numpy",
    "ml_dtypes",
    "onnx",
    "onnx.parser",
    "onnx.helper",
    "onnx_ir",
    "onnxruntime",
    "pytest",
)


class Job(TypedDict):
    """Tests to run."""

    tests: list[str]
    surroundings: dict[str, str]
    """Environment variables: a changed file, the folder of compiled kernels."""
    seconds: float
    """For all of them."""
    calls: str
    """A file for the functions that each test calls; empty: they are not noted."""


class Server:
    """The process, seen from outside."""

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.warm"],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
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
        self._process.stdin.close()
        self._process.wait()

    def run(self, job: Job) -> int | None:
        """Return the exit status of pytest; None: time ran out.

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
        status: int | None = json.loads(line)
        return status


def main() -> None:
    """Answer jobs until the input ends."""
    for name in _IMPORTED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(_forked(json.loads(line))) + "\n")
        answers.flush()


def _forked(job: Job) -> int | None:
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
                child = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _run(job: Job) -> int:
    """Run tests in a forked process, which leads a group of its own."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ.update(job["surroundings"])
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")]))
    os.environ["PYTHONPATH"] = path
    if "MUTATED_FILE" in job["surroundings"]:
        sys.path.insert(0, str(HOOK))
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    plugins: list[Any] = []
    if job["calls"]:
        from tests.mutation.calls import Calls

        plugins.append(Calls(Path(job["calls"])))
        options.remove("-x")
    return int(pytest.main([*options, *job["tests"]], plugins))


if __name__ == "__main__":
    main()

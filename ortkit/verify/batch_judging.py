"""Batches of values are judged beside the run of the next one.

A run keeps the threads of ONNX Runtime busy, and judging one core. No more batches wait than are
judged: each has its results on disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from ortkit.isolation.group import ProcessGroup
from ortkit.runtime.cpu_limits import cpu_limits
from ortkit.verify.rewrite_check import RewriteCheck

_MOST_JUDGES = 2


def judges_here() -> int:
    """Return how many batches are judged beside a run on this machine; 0: none, on one core."""
    return min(cpu_limits().whole // 2, _MOST_JUDGES)


class Judging:
    """The batches of one comparison, in order; a context manager that waits for all."""

    def __init__(self, judges: int) -> None:
        """Say how many are judged at a time; 0: each where it is added."""
        self._judges = judges
        self._pool = ThreadPoolExecutor(max(1, judges))
        self._group = ProcessGroup()
        self._found: list[Future[RewriteCheck]] = []
        self._last: _Results | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all batches; if there was an error, end those that are begun."""
        if error is not None:
            self._group.end()
        self._pool.shutdown(cancel_futures=error is not None)
        if self._last is not None:
            self._last.release()

    @property
    def is_over(self) -> bool:
        """Whether no more batches are wanted: time ran out, or a session failed.

        Waits for the oldest batch where as many as can be judged are left.
        """
        if len(self._found) > self._judges:
            self._found[-1 - self._judges].result()
        known = [each.result() for each in self._found if each.done()]
        return any(each.late or each.problem for each in known)

    def add(
        self, folder: Path, judge: Callable[[], RewriteCheck], problem: RewriteCheck | None
    ) -> None:
        """Let a batch be judged that has run.

        Args:
            folder: Of its results. The run of the next batch reads it too, until that is added.
            judge: Judges it, in another thread.
            problem: What the run was stopped by, which is what is found then.
        """
        if self._last is not None:
            self._last.release()
        self._last = results = _Results(folder)
        self._found.append(
            self._pool.submit(self._group.call, partial(_judged, judge, problem, results))
        )

    @property
    def checks(self) -> list[RewriteCheck]:
        """What was found of each batch, once all are judged."""
        return [each.result() for each in self._found]


class _Results:
    """A folder that two read: who judges it, and the next run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers = 2
        self._lock = Lock()

    def release(self) -> None:
        """Say that one of them is done; the second removes the folder."""
        with self._lock:
            self._readers -= 1
            is_last = not self._readers
        if is_last:
            shutil.rmtree(self._folder)


def _judged(
    judge: Callable[[], RewriteCheck], problem: RewriteCheck | None, results: _Results
) -> RewriteCheck:
    try:
        return judge() if problem is None else problem
    finally:
        results.release()

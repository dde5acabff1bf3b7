"""Batches of values: runs that start where the one before stopped, and judging beside them.

The values of a model are compared in batches that fit the memory. Each batch needs a run of the
original; from the model's inputs that takes longer with each batch. A run keeps ONNX Runtime's
threads busy, and judging one core. No more batches wait than are judged: each has its results on
disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import onnx_ir as ir

from ortkit.isolation.group import ProcessGroup
from ortkit.runtime.cpu_limits import cpu_limits
from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.steps import captured, given_names, read_from_inputs

_MOST_JUDGES = 2


@dataclass(frozen=True)
class Stop:
    """Where an earlier run of the original stopped."""

    values: frozenset[str] = frozenset()
    """The names of the values that it gave and later nodes read."""
    results: Path | None = None
    """The folder of its results; None before the first run."""


@dataclass(frozen=True)
class Batch:
    """Values that are compared at once, and the steps of both models that compute them."""

    names: tuple[str, ...]
    steps: ir.Model
    """The candidate's."""
    own_steps: ir.Model
    """The original's."""

    @property
    def needed(self) -> set[str]:
        """The values that a run of the original gives: those, and what the steps read."""
        return {*self.names, *given_names(self.steps), *given_names(self.own_steps)}


def live_values(model: ir.Model, computed: Collection[str], later: Collection[str]) -> set[str]:
    """Return the values that are known after a run and are read or given after it.

    Args:
        model: Not changed.
        computed: Names of values that the run gives. It computes what is before the last of them.
        later: Names of values that later runs give.
    """
    nodes = list(model.graph)
    outputs = [{value.name or "" for value in node.outputs} for node in nodes]
    end = max((at for at, names in enumerate(outputs, 1) if names & set(computed)), default=0)
    read = {*later} | {
        value.name or ""
        for node in nodes[end:]
        for value in (*node.inputs, *captured(node))
        if value is not None
    }
    return read & set().union(*outputs[:end])


def resume(model: ir.Model, names: Collection[str]) -> None:
    """Let a model read values from inputs `NAME/given` instead of computing them, in place.

    It can still give them: a copy of the input has the name.

    Args:
        model: Changed.
        names: Of values that nodes of the main graph compute, whose types are known.
    """
    for value, given in read_from_inputs(model, names).items():
        copy = ir.node("Identity", [given])
        copy.outputs[0].name, value.name = value.name, f"{value.name}/computed"
        copy.outputs[0].type = given.type
        model.graph.insert_before(model.graph[0], copy)


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

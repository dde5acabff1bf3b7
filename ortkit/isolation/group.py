"""Processes that threads start, and that end together when their work is not wanted any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

from ortkit.isolation.processes import Process

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class ProcessGroup:
    """The processes that are started in calls of it; once it has ended, new ones end at once."""

    def __init__(self) -> None:
        """Begin without a process."""
        self._lock = Lock()
        self._processes: set[Process] = set()
        self._is_over = False

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function whose processes are of the group."""
        return copy_context().run(self._call, function)

    def _call(self, function: Callable[[], Result]) -> Result:
        _CURRENT.set(self)
        return function()

    def add(self, process: Process) -> None:
        """Take a process that was started."""
        with self._lock:
            self._processes.add(process)
            is_over = self._is_over
        if is_over:
            _kill(process)

    def discard(self, process: Process) -> None:
        """Let go of a process that is closed."""
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        """Kill all processes."""
        with self._lock:
            self._is_over = True
            processes = list(self._processes)
        for process in processes:
            _kill(process)


def _kill(process: Process) -> None:
    """Kill a process that another thread waits for, which closes it."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


_CURRENT: ContextVar[ProcessGroup | None] = ContextVar("process group", default=None)


@contextmanager
def ending(group: ProcessGroup) -> Iterator[None]:
    """End a group where a block raises."""
    try:
        yield
    except BaseException:
        group.end()
        raise


@contextmanager
def begun(call: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Call a function in a thread; processes that it still has at the end of the block are killed.

    Yields:
        A function that waits for the result, and raises what the call raises.
    """
    group, pool = ProcessGroup(), ThreadPoolExecutor(1, "begun")
    made = pool.submit(group.call, call)
    try:
        yield made.result
    finally:
        group.end()
        pool.shutdown()


def current_group() -> ProcessGroup | None:
    """Return the group of the running call, if there is one."""
    return _CURRENT.get()


def in_current_group(function: Function) -> Function:
    """Return a function that other threads may call for the group of this call."""
    group = current_group()
    if group is None:
        return function
    return cast(Function, lambda *given: group.call(partial(function, *given)))

"""Others keep off the device while one thread captures a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CaptureGate:
    """Lets any number of threads use the device, or one of them capture.

    ONNX Runtime captures in CUDA's global mode: what other threads allocate or wait for in the
    meantime fails, and the capture with it ("operation not permitted when stream is capturing",
    seen in a second session on an H100, ONNX Runtime 1.31.1, 2026-11). Work that does not go
    through an ortkit session is not held back.

    Use the gate itself in a `with` block around what uses the device; blocks may be nested.
    """

    def __init__(self) -> None:
        """Make an open gate."""
        self._condition = threading.Condition(threading.Lock())
        self._users = 0
        self._waiting = 0
        self._is_capturing = False
        self._mine = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._mine, "depth", 0)
        self._mine.depth = depth + 1
        if depth:
            return
        with self._condition:
            # Those that want to capture come first: users may never pause.
            while self._is_capturing or self._waiting:
                self._condition.wait()
            self._users += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mine.depth -= 1
        if self._mine.depth:
            return
        with self._condition:
            self._users -= 1
            if not self._users and self._waiting:
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody uses the device, and keep others away; not from within a block."""
        with self._condition:
            self._waiting += 1
            try:
                while self._is_capturing or self._users:
                    self._condition.wait()
            finally:
                self._waiting -= 1
            self._is_capturing = True
        self._mine.depth = 1
        try:
            yield
        finally:
            self._mine.depth = 0
            with self._condition:
                self._is_capturing = False
                self._condition.notify_all()


#: CUDA's capture is one for the whole process.
GATE = CaptureGate()


def gated(call: Callable[P, R]) -> Callable[P, R]:
    """Return the call with the gate around it."""

    def through(*args: P.args, **kwargs: P.kwargs) -> R:
        with GATE:
            return call(*args, **kwargs)

    return through

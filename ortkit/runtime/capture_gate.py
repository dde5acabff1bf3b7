"""Others keep off the device while one thread captures a CUDA graph."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
#: More threads than this wait for each other.
_MOST_USERS = 64


class CaptureGate:
    """Lets threads use the device together, or one of them capture alone.

    ONNX Runtime captures in CUDA's global mode. What other threads allocate or wait for in the
    meantime fails, and the capture with it ("operation not permitted when stream is capturing";
    now and then the process ends. Seen with two sessions on an H100, ONNX Runtime 1.31.1,
    2026-11). Work that does not go through an ortkit session does not wait.

    Use the gate itself in a `with` block around what uses the device; blocks may be nested.
    """

    def __init__(self) -> None:
        """Make an open gate."""
        # Of C throughout: every run on CUDA passes here. A user holds one token, a capture all.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_MOST_USERS):
            self._tokens.put(None)
        self._captures = threading.Lock()
        self._is_wanted = False
        self._mine = _Depth()

    def __enter__(self) -> None:
        mine = self._mine
        if not mine.depth:
            if self._is_wanted:  # or users that never pause would keep the capture out
                with self._captures:
                    pass
            self._tokens.get()
        mine.depth += 1

    def __exit__(self, *_: object) -> None:
        mine = self._mine
        mine.depth -= 1
        if not mine.depth:
            self._tokens.put(None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody uses the device, and keep others away; not from within a block."""
        with self._captures:
            attempts, self._is_wanted = 0, True
            try:
                # Those who come later get no token until all are back.
                while attempts < _MOST_USERS:
                    self._tokens.get()
                    attempts += 1
                self._mine.depth += 1
                try:
                    yield
                finally:
                    self._mine.depth -= 1
            finally:
                self._is_wanted = False
                for _ in range(attempts):
                    self._tokens.put(None)


class _Depth(threading.local):
    depth = 0


#: CUDA's capture is one for the whole process.
GATE = CaptureGate()


def gated(call: Callable[P, R]) -> Callable[P, R]:
    """Return the call with the gate around it."""

    def through(*args: P.args, **kwargs: P.kwargs) -> R:
        with GATE:
            return call(*args, **kwargs)

    return through

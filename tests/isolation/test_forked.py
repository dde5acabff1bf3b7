"""Calls in copies of this process: what crashes, hangs or fails costs one of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial

import pytest

from ortkit.errors import KernelError
from ortkit.isolation import forked
from ortkit.isolation.ended import Crashed, Failed, TimedOut
from ortkit.isolation.forked import in_processes


def crash() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def fail() -> int:
    raise KernelError("no registers left", where="k")


def hang() -> int:
    time.sleep(600)
    return 0


def end() -> int:
    os._exit(3)


def test_what_fails_costs_one_call() -> None:
    calls: list[Callable[[], int]] = [partial(pow, 2, 5), crash, fail, end, partial(pow, 2, 3)]
    first, *problems, last = in_processes(calls, 2, 60.0)
    assert (first, last) == (32, 8)
    crashed, failed, ended = problems
    assert (crashed, ended) == (Crashed(signal.SIGSEGV), Failed("no result", 3))
    assert isinstance(failed, Failed) and isinstance(failed.error, KernelError)
    assert failed.problem == "no registers left"
    assert multiprocessing.active_children() == []


def test_what_hangs_is_ended() -> None:
    found = in_processes([hang, partial(pow, 2, 5)], 2, 0.5)
    assert found == [TimedOut(0.5), 32]
    assert multiprocessing.active_children() == []


def test_an_interrupt_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def interrupted(*_: object) -> None:
        seen.extend(child.pid or 0 for child in multiprocessing.active_children())
        raise KeyboardInterrupt

    monkeypatch.setattr(forked, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_processes([hang, hang], 2, 600.0)
    assert len(seen) == 2
    assert multiprocessing.active_children() == []
    for process in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

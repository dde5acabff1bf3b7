"""Calls in processes that are copies of this one: a crash or a hang there costs one of them.

For what cannot be imported elsewhere, such as code that a user has in memory. The caller may run
no threads that the calls need.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeVar

from ortkit.errors import OrtkitError
from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.parent import end_with_parent

Result = TypeVar("Result")


@dataclass
class _Running:
    number: int
    process: BaseProcess
    until: float


def in_processes(
    calls: Sequence[Callable[[], Result]], workers: int, seconds: float
) -> list[Result | Ended]:
    """Return for each call what it returns, or why it did not.

    No process is left when this ends, however it does.

    Args:
        calls: Whose results can be pickled; they have to do with files only.
        workers: How many run at once.
        seconds: How long one may take.
    """
    context = multiprocessing.get_context("fork")
    found: list[Result | Ended] = [Failed("it was not begun")] * len(calls)
    waiting, running = deque(range(len(calls))), dict[Connection, _Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number = waiting.popleft()
                answers, answer = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run, args=(calls[number], answer, os.getpid()), daemon=True
                )
                process.start()
                answer.close()
                running[answers] = _Running(number, process, time.monotonic() + seconds)
            left = min(one.until for one in running.values()) - time.monotonic()
            for each in wait([*running], max(0.0, left)):
                assert isinstance(each, Connection)
                one = running.pop(each)
                found[one.number] = _answer(each, one.process)
            for each in [each for each, item in running.items() if item.until < time.monotonic()]:
                one = running.pop(each)
                _end(each, one.process)
                found[one.number] = TimedOut(seconds)
    finally:
        for each, one in running.items():
            _end(each, one.process)
    return found


def _answer(answers: Connection, process: BaseProcess) -> Result | Ended:
    try:
        found: Result | Ended = answers.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        return Crashed(-code) if code < 0 else Failed("no result", code)
    finally:
        _end(answers, process)
    return found


def _end(answers: Connection, process: BaseProcess) -> None:
    answers.close()
    process.kill()
    process.join()


def _run(call: Callable[[], Result], answer: Connection, parent: int) -> None:
    """Do a call in a process of its own."""
    end_with_parent(parent)
    # An interrupt is for the parent to act on; and toolchains print the stack of a crash.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    found: Result | Ended
    try:
        found = call()
    except OrtkitError as error:
        found = Failed(error.problem, error=error)
    except Exception as error:  # noqa: BLE001  one call, never the others
        found = Failed(f"{type(error).__name__}: {error}")
    answer.send(found)

"""What the process of a job does: it gets its task from its caller over a channel, in `run.py`.

It imports little, as what it takes counts as the job's where memory is measured.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ortkit.errors import OrtkitError
from ortkit.isolation.channel import Channel
from ortkit.isolation.ended import Failed


@dataclass(frozen=True)
class Surroundings:
    """What a job finds as its caller has it; sent first, as the task needs the module path."""

    path: list[str]
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """What to do.

    Args:
        kind: `run`: the function's result is the answer. `stream`: it is given a function that
            sends answers. `hold`: its result is an object whose methods are called.
        function: Of a module that can be imported; called with the job.
        job: Its argument.
    """

    kind: Literal["run", "stream", "hold"]
    function: Callable[..., Any]
    job: Any


@dataclass(frozen=True)
class Call:
    """A method of the object that is held."""

    method: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a call returned, or what a stream has so far."""

    value: Any


@dataclass(frozen=True)
class Over:
    """A stream came to its end."""


def main(descriptor: int) -> NoReturn:
    """Do the task that comes over a socket, and end this process.

    Nothing else runs at its end: what libraries do there may crash, and nobody waits for it.
    """
    code = 1
    try:
        code = _serve(Channel(socket.socket(fileno=descriptor)))
    except BaseException:  # noqa: BLE001  a process that was forked must not run on
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _serve(channel: Channel) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    surroundings: Surroundings = channel.receive()
    sys.path[:] = surroundings.path
    os.chdir(surroundings.folder)
    os.environ.clear()
    os.environ.update(surroundings.environment)
    try:
        _do(channel, channel.receive())
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        channel.send(Failed(str(end.code)))
    except Exception as error:  # noqa: BLE001  the caller says what is to be done
        channel.send(_failed(error))
    return 0


def _do(channel: Channel, task: Task) -> None:
    if task.kind == "run":
        channel.send(Answer(task.function(task.job)))
    elif task.kind == "stream":
        task.function(task.job, lambda value: channel.send(Answer(value)))
        channel.send(Over())
    else:
        _hold(channel, task)


def _hold(channel: Channel, task: Task) -> None:
    """Answer calls until nobody calls any more; an object that cannot be made answers with why."""
    try:
        result, failed = task.function(task.job), None
    except Exception as error:  # noqa: BLE001  as above
        result, failed = None, _failed(error)
    with suppress(EOFError):
        while True:
            call: Call = channel.receive()
            channel.send(failed or _answer(result, call))


def _answer(result: object, call: Call) -> Answer | Failed:
    try:
        return Answer(getattr(result, call.method)(*call.arguments, **call.named))
    except Exception as error:  # noqa: BLE001  as above
        return _failed(error)


def _failed(error: Exception) -> Failed:
    if isinstance(error, OrtkitError):
        return Failed(str(error), error=error)
    line = " ".join("".join(traceback.format_exception_only(error)).split())
    return Failed(line)

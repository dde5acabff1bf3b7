"""A function called in a process of its own: a crash or a hang there costs the call alone."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from ortkit.errors import InternalError
from ortkit.isolation.channel import Channel
from ortkit.isolation.child import Answer, Call, Over, Surroundings, Task
from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.isolation.group import current_group
from ortkit.isolation.processes import (
    COMMON,
    END_SECONDS,
    START_SECONDS,
    ForkedProcess,
    NewProcess,
    Process,
    ServerKind,
    last_lines,
    module_path,
)

Imports = Literal["ortkit", "nothing"]
"""What a process has imported before its job: the job's module, or nothing."""

Job = TypeVar("Job")
Result = TypeVar("Result")
Object = TypeVar("Object")
Arguments = ParamSpec("Arguments")


def run_isolated(
    function: Callable[[Job], Result],
    job: Job,
    *,
    timeout_seconds: float,
    imports: Imports = "ortkit",
    environment: Mapping[str, str] | None = None,
) -> Result | Ended:
    """Call a function in a process of its own, and wait for its result.

    The process has this one's environment, working folder and module path, but none of its
    memory, threads or open files. It ends with this process, and with an exception in it.

    Args:
        function: Of a module, which must start no thread when it is imported if `imports` is
            `ortkit`: a process that forks others imports it. The function may.
        job: Its argument; like the result it goes by `pickle`, as a dataclass of small things.
            What is large goes through files.
        timeout_seconds: After which the process is killed, with all that it started.
        imports: `nothing` where the process is measured, or what it loads is read at its start.
        environment: Additional variables.

    Raises:
        InternalError: No process can be started.
    """
    with IsolatedTask("run", function, job, imports, environment) as task:
        answer = task.receive(timeout_seconds, time.monotonic() + timeout_seconds)
    result: Result | Ended = _value(answer)
    return result


def stream_isolated(
    function: Callable[[Job, Callable[[Result], None]], None],
    job: Job,
    *,
    timeout_seconds: float,
    imports: Imports = "ortkit",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Result | Ended]:
    """Call a function in a process of its own that sends its results one by one.

    What it sent before a crash is yielded, and how it ended comes last. The process ends with the
    iterator.

    Args:
        function: Called with the job, and with a function to send a result.
        job: As for `run_isolated`.
        timeout_seconds: For all results.
        imports: As for `run_isolated`.
        environment: As for `run_isolated`.

    Raises:
        InternalError: No process can be started.
    """
    with IsolatedTask("stream", function, job, imports, environment) as task:
        until = time.monotonic() + timeout_seconds
        while not isinstance(answer := task.receive(timeout_seconds, until), Over):
            if isinstance(answer, Ended):
                yield answer
                return
            yield answer.value


class IsolatedObject(Generic[Object]):
    """An object in a process of its own, whose methods are called there; a context manager.

    Args:
        make: Returns the object for a job; a class, mostly.
        job: As for `run_isolated`.
        imports: As for `run_isolated`.
        environment: As for `run_isolated`.
        server: What the process is forked from, if `imports` is `ortkit`.
    """

    def __init__(
        self,
        make: Callable[[Job], Object],
        job: Job,
        *,
        imports: Imports = "ortkit",
        environment: Mapping[str, str] | None = None,
        server: ServerKind = COMMON,
    ) -> None:
        """Start the process.

        Raises:
            InternalError: It cannot be started.
        """
        self._task = IsolatedTask("hold", make, job, imports, environment, server)
        self._stopped = False

    def call(
        self,
        timeout_seconds: float,
        method: Callable[Concatenate[Object, Arguments], Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result | Ended:
        """Call a method. After `Failed` others may be called, else the process is gone.

        Args:
            timeout_seconds: After which the process is killed.
            method: Of the object's class.
            arguments: Its arguments.
            named: Its arguments by name.
        """
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False
        until = time.monotonic() + timeout_seconds
        self._task.send(Call(method.__name__, arguments, named), until)
        result: Result | Ended = _value(self._task.receive(timeout_seconds, until))
        return result

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._task.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether methods can be called."""
        return self._task.is_alive

    def stop(self) -> None:
        """Let no thread of the process run until a method is called."""
        if not self._stopped and self.is_alive:
            self._signal(signal.SIGSTOP)
            self._stopped = True

    def _signal(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def close(self) -> None:
        """End the process at once."""
        self._task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _value(answer: Answer | Over | Ended) -> Any:
    if isinstance(answer, Answer):
        return answer.value
    assert isinstance(answer, Ended)
    return answer


class IsolatedTask:
    """A process with its task, and what it answers; a context manager that ends it."""

    def __init__(
        self,
        kind: Literal["run", "stream", "hold"],
        function: Callable[..., Any],
        job: Any,
        imports: Imports = "ortkit",
        environment: Mapping[str, str] | None = None,
        server: ServerKind = COMMON,
    ) -> None:
        """Start it; see `Task`.

        Raises:
            InternalError: It cannot be started.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._read = 0
        self._end: Ended | None = None
        variables = {**os.environ, **(environment or {})}
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        try:
            with theirs:
                self.process: Process = (
                    NewProcess(theirs.fileno(), self._log.fileno(), variables)
                    if imports == "nothing"
                    else ForkedProcess(
                        function.__module__, theirs.fileno(), self._log.fileno(), server
                    )
                )
        except OSError as error:
            self._channel.close()
            self._log.close()
            raise InternalError(f"no process can be started: {error}") from error
        self._group = current_group()
        if self._group is not None:
            self._group.add(self.process)
        if imports != "nothing" and server.current is not None:
            variables |= server.current.environment
        until = time.monotonic() + START_SECONDS
        self.send(Surroundings(module_path(), str(Path.cwd()), variables), until)
        self.send(Task(kind, function, job), until)

    def send(self, value: object, until: float) -> None:
        """Send a value; what keeps it from that `receive` tells."""
        if self._end is None:
            with suppress(OSError):  # also where time is up
                self._channel.send(value, until)

    def receive(self, seconds: float, until: float) -> Answer | Over | Ended:
        """Return the next answer; if the process ended, or has to be killed for that, how."""
        if self._end is None:
            try:
                answer: Answer | Over | Ended = self._channel.receive(until)
            except TimeoutError:
                self.process.kill()
                self._end = TimedOut(seconds, self._said())
            except EOFError:
                self._end = self._ended()
            else:
                # What is printed later is about what comes later.
                self._read = os.fstat(self._log.fileno()).st_size
                return answer
        return self._end

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._end is None and self.process.wait(0) is None

    def _ended(self) -> Ended:
        code = self.process.wait(END_SECONDS)
        if code is None:
            self.process.kill()
            code = -signal.SIGKILL
        said = self._said()
        if code < 0:
            return Crashed(-code, said)
        return Failed(said.rpartition(" | ")[2] or "no output", code)

    def _said(self) -> str:
        """Return what was printed since the last answer."""
        return last_lines(self._log, self._read)

    def close(self) -> None:
        """End the process."""
        self._end = self._end or Crashed(signal.SIGKILL)
        self.process.kill()
        if self._group is not None:
            self._group.discard(self.process)
        self._channel.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

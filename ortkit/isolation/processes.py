"""Processes for jobs: forked from a server, which is fast, or new, which have nothing imported."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

#: The server takes some 50 MB, and a quarter of a second of processor time to start.
IDLE_SECONDS = 5.0
#: A process that was killed, and could not be waited for, is left to the system.
END_SECONDS = 10.0
_ROOT = str(Path(__file__).parents[2])
_SERVE = (
    "import json, sys; path, *given = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from ortkit.isolation.server import main; main(*given)"
)
# -P keeps the working folder out of the module path, where a file may be called as a module of
# the standard library; ours is found wherever this process found it.
_JOB = (
    "import sys; sys.path.append({root!r}); "
    "from ortkit.parent import end_with_parent; end_with_parent({parent}); "
    "from ortkit.isolation.child import main; main({channel})"
)


class Process(Protocol):
    """A process of a job."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def wait(self, seconds: float) -> int | None:
        """Return its exit status, negative for a signal; None if it does not end in time."""
        ...

    def kill(self) -> None:
        """End it with what it started; it is gone afterwards."""
        ...


class NewProcess:
    """A Python that has nothing imported but what reads its task."""

    def __init__(self, channel: int, log: int, environment: dict[str, str]) -> None:
        """Start it; it ends with the thread that does."""
        code = _JOB.format(root=_ROOT, parent=os.getpid(), channel=channel)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            pass_fds=[channel], start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Return its exit status; see `Process`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """End it with what it started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class ForkedProcess:
    """A copy of a server, which has the job's module imported."""

    def __init__(self, module: str, channel: int, log: int, server: ServerKind) -> None:
        """Fork it.

        Raises:
            OSError: No server can be started.
        """
        try:
            self._link, self._pid = _begun(module, channel, log, server, is_new=False)
        except OSError:
            self._link, self._pid = _begun(module, channel, log, server, is_new=True)
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Its number."""
        return self._pid

    def wait(self, seconds: float) -> int | None:
        """Return its exit status; see `Process`."""
        if self._status is None:
            self._link.settimeout(seconds)
            with suppress(TimeoutError, BlockingIOError):
                told = self._link.recv(64)
                # A server that is killed takes its jobs along.
                self._status = int(told) if told else -signal.SIGKILL
                self._link.close()
        return self._status

    def kill(self) -> None:
        """End it with what it started."""
        if self._status is None:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)  # the server kills it
            with suppress(OSError):
                self.wait(END_SECONDS)
        self._link.close()


class ServerKind:
    """What a server has loaded; there is one of each kind at a time.

    Args:
        preload: A function that it calls first, as "module:function"; empty for none.
        idle_seconds: How long it stays without a job; None for `IDLE_SECONDS`.
    """

    def __init__(self, preload: str = "", idle_seconds: float | None = None) -> None:
        self.preload = preload
        self.idle_seconds = idle_seconds
        self.lock = threading.Lock()
        self.current: Server | None = None

    def running(self, *, is_new: bool) -> Server:
        """Return a server that runs; the caller holds the lock."""
        if is_new or self.current is None or not self.current.is_usable:
            self.end()
            self.current = Server(self)
        return self.current

    def end(self) -> None:
        """End the server, and so its jobs."""
        if self.current is not None:
            self.current.close()


class Server:
    """The process that jobs are forked from; see `server.py`."""

    def __init__(self, kind: ServerKind) -> None:
        """Start it."""
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        idle = IDLE_SECONDS if kind.idle_seconds is None else kind.idle_seconds
        with theirs:
            given = json.dumps([module_path(), theirs.fileno(), idle, kind.preload])
            # In a session of its own: an interrupt from the keyboard is the caller's to act on.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE, given],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        _servers.append(self)

    @property
    def is_usable(self) -> bool:
        """Whether the server runs, and is not that of the process this one was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def begin(self, module: str, channel: int, log: int) -> socket.socket:
        """Let the server fork a process; returns the socket on which it tells of it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                descriptors = [theirs.fileno(), channel, log]
                socket.send_fds(self._control, [module.encode()], descriptors)
            except OSError:
                ours.close()
                raise
        return ours

    def close(self) -> None:
        """End the server, and so its jobs."""
        self._control.close()
        if self._owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        if self in _servers:
            _servers.remove(self)


_servers: list[Server] = []
#: For jobs that need nothing loaded but their modules.
COMMON = ServerKind()


@atexit.register
def _end() -> None:
    for server in _servers:
        server.close()


class _IdleError(OSError):
    """The server had ended for lack of work before it got some."""


def _begun(
    module: str, channel: int, log: int, kind: ServerKind, *, is_new: bool
) -> tuple[socket.socket, int]:
    """Return the socket and the number of a process that was forked."""
    with kind.lock:
        link = kind.running(is_new=is_new).begin(module, channel, log)
    if not (told := link.recv(64)):
        link.close()
        raise _IdleError("the server of processes ended")
    return link, int(told)


def module_path() -> list[str]:
    """Return where a job finds modules."""
    # The empty one stands for the working folder, where a file may be called as a module of the
    # standard library: it comes last.
    return [*filter(None, sys.path), str(Path.cwd())]

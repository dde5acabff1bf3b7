"""Processes for jobs: forked from a server, which is fast, or new, which have nothing imported."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from ortkit.temporary import TemporaryFolder

#: The server takes some 50 MB, and a quarter of a second of processor time to start.
IDLE_SECONDS = 5.0
#: A process that was killed, and could not be waited for, is left to the system.
END_SECONDS = 10.0
#: Until a process is there; what a server loads first takes 1 to 3 s.
START_SECONDS = 60.0
_MOST_LINES, _MOST_CHARACTERS = 5, 600
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
        self._link, self._pid = _begun(module, channel, log, server)
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
                message = self._link.recv(64)
                # A server that is killed takes its jobs along.
                self._status = int(message) if message else -signal.SIGKILL
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
        preload: A function of a module that it calls first; None for none.
        argument: Of that function.
        purpose: Of a folder for temporary files of its processes, lower-case letters; empty for
            that of the caller.
        idle_seconds: How long it stays without a job; None for `IDLE_SECONDS`.
    """

    def __init__(
        self,
        preload: Callable[[str], object] | None = None,
        argument: str = "",
        *,
        purpose: str = "",
        idle_seconds: float | None = None,
    ) -> None:
        """Start nothing yet."""
        self.preload = "" if preload is None else f"{preload.__module__}:{preload.__name__}"
        self.argument = argument
        self.purpose = purpose
        self.idle_seconds = idle_seconds
        self.lock = threading.Lock()
        self.current: Server | None = None

    def running(self, *, other_than: Server | None = None) -> Server:
        """Return a server that runs; the caller holds the lock.

        Args:
            other_than: One that did not do what it was asked for.
        """
        if self.current is None or self.current is other_than or not self.current.is_usable:
            self.end()
            self.current = Server(self)
        return self.current

    def end(self) -> None:
        """End the server, and so its jobs."""
        if self.current is not None:
            self.current.close()


class Server:
    """The process that jobs are forked from; see `server.py`.

    Attributes:
        environment: Additional variables of its processes.
    """

    def __init__(self, kind: ServerKind) -> None:
        """Start it."""
        self._owner = os.getpid()
        self._folder = TemporaryFolder(kind.purpose) if kind.purpose else None
        self.environment = {} if self._folder is None else {"TMPDIR": str(self._folder.path)}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        idle = IDLE_SECONDS if kind.idle_seconds is None else kind.idle_seconds
        with theirs:
            given = json.dumps([module_path(), theirs.fileno(), idle, kind.preload, kind.argument])
            # In a session of its own: an interrupt from the keyboard is the caller's to act on.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE, given],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                env={**os.environ, **self.environment}, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        _servers.append(self)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

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

    def ending(self) -> str:
        """Say how it ended, when it has closed its sockets."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        code, said = self._process.poll(), last_lines(self._log)
        how = "hangs" if code is None else "ended"
        if code is not None and code < 0:
            how = f"crashed with signal {-code} ({signal.Signals(-code).name})"
        return f"the process that others are forked from {how}{': ' if said else ''}{said}"

    def close(self) -> None:
        """End the server, and so its jobs."""
        self._control.close()
        if self in _servers:
            _servers.remove(self)
            self._log.close()
        if self._owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            if self._folder is not None:
                self._folder.cleanup()


_servers: list[Server] = []
#: For jobs that need nothing loaded but their modules.
COMMON = ServerKind()


@atexit.register
def _end() -> None:
    for server in _servers:
        server.close()


def _begun(module: str, channel: int, log: int, kind: ServerKind) -> tuple[socket.socket, int]:
    """Return the socket and the number of a process that was forked.

    A server may have ended for lack of work before it got some: another one is started then.

    Raises:
        OSError: That ends, too.
    """
    tried: Server | None = None
    for _ in range(2):
        with kind.lock:
            server = tried = kind.running(other_than=tried)
            try:
                link = server.begin(module, channel, log)
            except OSError:
                continue
        link.settimeout(START_SECONDS)
        with suppress(OSError):
            if message := link.recv(64):
                return link, int(message)
        link.close()
    raise OSError(server.ending())


def last_lines(log: IO[bytes], begin: int = 0) -> str:
    """Return the end of what a process printed, as one line.

    Args:
        log: Where it printed to.
        begin: Where to begin in it, bytes.
    """
    log.seek(begin)
    return one_line(log.read().decode(errors="replace"))


def one_line(text: str) -> str:
    """Return the end of a text that a tool printed, as one line."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return " | ".join(line for line in lines[-_MOST_LINES:] if line)[-_MOST_CHARACTERS:]


def module_path() -> list[str]:
    """Return where a job finds modules."""
    # The empty one stands for the working folder, where a file may be called as a module of the
    # standard library: it comes last.
    return [*filter(None, sys.path), str(Path.cwd())]

"""Running a module's `main` in a process of its own."""

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

from ortkit.errors import InternalError
from ortkit.isolation.server import Job

#: The server takes some 50 MB, and a quarter of a second of processor time to start.
IDLE_SECONDS = 5.0
#: A process that was killed, and could not be waited for, is left to the system.
_END_SECONDS = 10.0
_START = (
    "import json, sys; path, control, idle = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from ortkit.isolation.server import main; main(control, idle)"
)
LATE = "did not finish"


def run_isolated(module: str, *arguments: str, log: Path, timeout_seconds: float) -> str:
    """Call the `main` of a module in a process of its own, and wait for it.

    The process has this one's environment, working folder and module path, but none of its
    memory, threads or open files. It ends with this process, and with an exception in it.

    Args:
        module: It is imported by a process that forks others: it must start no thread when it is
            imported. `main` may.
        arguments: Of `main`.
        log: A file for what the process prints.
        timeout_seconds: After which it is killed, with all that it started.

    Returns:
        How it ended badly; empty if it did not.

    Raises:
        InternalError: No process can be started.
    """
    try:
        code = _run(_job(module, arguments), log, timeout_seconds)
    except OSError as error:
        raise InternalError(f"no process can be started: {error}") from error
    if code is None:
        return f"{LATE} within {timeout_seconds:.0f} seconds"
    if code < 0:
        return f"crashed with signal {-code} ({signal.strsignal(-code)})"
    if code > 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"ended with status {code}: {lines[-1] if lines else 'no output'}"
    return ""


def _job(module: str, arguments: tuple[str, ...]) -> Job:
    return {
        "module": module,
        "arguments": list(arguments),
        "path": _module_path(),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }


def _module_path() -> list[str]:
    # The empty one stands for the working folder, where a file may be called as a module of the
    # standard library: it comes last.
    return [*filter(None, sys.path), str(Path.cwd())]


class _Server:
    """The process that jobs are forked from; see `server.py`."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = json.dumps([_module_path(), theirs.fileno(), IDLE_SECONDS])
            # In a session of its own: an interrupt from the keyboard is the caller's to act on.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, given],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    @property
    def is_usable(self) -> bool:
        """Whether the server runs, and is not that of the process this one was forked from."""
        return self.owner == os.getpid() and self._process.poll() is None

    def begin(self, module: str, log: int) -> socket.socket:
        """Let the server fork a process; returns the socket that the job is sent on."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [module.encode()], [theirs.fileno(), log])
            except OSError:
                ours.close()
                raise
        return ours

    def close(self) -> None:
        """End the server, and so its jobs."""
        self._control.close()
        if self.owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)


_lock = threading.Lock()
_current: _Server | None = None


def _server(*, is_new: bool) -> _Server:
    """Return a server that runs; the caller holds the lock."""
    global _current
    if is_new or _current is None or not _current.is_usable:
        if _current is not None:
            _current.close()
        _current = _Server()
    return _current


@atexit.register
def _end() -> None:
    if _current is not None:
        _current.close()


class _IdleError(OSError):
    """The server had ended for lack of work before it got some."""


def _run(job: Job, log: Path, timeout_seconds: float) -> int | None:
    """Run a job; returns its exit status, None if it was killed for its time."""
    try:
        return _try(job, log, timeout_seconds, is_new=False)
    except OSError:
        return _try(job, log, timeout_seconds, is_new=True)


def _try(job: Job, log: Path, timeout_seconds: float, *, is_new: bool) -> int | None:
    with log.open("wb") as output, _lock:
        link = _server(is_new=is_new).begin(job["module"], output.fileno())
    with link, link.makefile("rb") as answers:
        if not answers.readline():
            raise _IdleError("the server of processes ended")
        link.sendall(json.dumps(job).encode() + b"\n")
        link.settimeout(timeout_seconds)
        try:
            return _status(answers.readline())
        except TimeoutError:
            return None
        finally:
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)  # the server kills what still runs
                link.settimeout(_END_SECONDS)
                link.recv(64)


def _status(line: bytes) -> int:
    """Read an exit status; a server that is killed takes its jobs along."""
    return int(line) if line else -signal.SIGKILL

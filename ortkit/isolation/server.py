"""The process that jobs are forked from; started by `processes.py`.

It imports our modules that jobs run and starts no threads of its own, so that forking is safe: the
caller's process may have ONNX Runtime's threads. The caller sends three descriptors for a job.
They are a socket on which the process's number and its exit status come back, the job's channel,
and the file that the job prints to. A caller that shuts the socket ends the job.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from ortkit.isolation.child import main as run_job
from ortkit.parent import end_with_parent

#: What the caller sends with the three descriptors: the name of the job's module.
MOST_BYTES = 1024


def main(control: int, idle_seconds: float, preload: str = "", argument: str = "") -> None:
    """Serve jobs until the caller is gone, or none comes for `idle_seconds`.

    Args:
        control: The descriptor of a socket of datagrams.
        idle_seconds: How long to wait for a job while none runs.
        preload: A function that is called first, as "module:function"; empty for none.
        argument: Its argument.
    """
    if preload:
        module, _, function = preload.partition(":")
        with suppress(Exception):  # the job says why
            getattr(import_module(module), function)(argument)
    with socket.socket(fileno=control) as requests:
        _Server(requests, idle_seconds).run()


class _Server:
    def __init__(self, requests: socket.socket, idle_seconds: float) -> None:
        self._requests = requests
        self._idle_seconds = idle_seconds
        self._running: dict[int, socket.socket] = {}
        """The sockets of the jobs that run, by process."""
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        try:
            while self._serve():
                pass
        finally:
            for process in list(self._running):
                self._kill(process)
            for process in list(self._running):
                self._answer(process, os.waitpid(process, 0)[1])

    def _serve(self) -> bool:
        """Wait for what comes next; False if that is the end."""
        ready = select.poll()
        ready.register(self._requests, select.POLLIN)
        ready.register(self._woken, select.POLLIN)
        for link in self._running.values():
            ready.register(link, select.POLLRDHUP)
        idle = None if self._running else 1000 * self._idle_seconds
        events = dict(ready.poll(idle))
        if not events:
            return False
        if self._woken in events:
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 12)
        self._reap()
        for process, link in self._running.items():
            if link.fileno() in events:
                self._kill(process)
        return self._requests.fileno() not in events or self._accept()

    def _accept(self) -> bool:
        content, descriptors, *_ = socket.recv_fds(self._requests, MOST_BYTES, 3)
        if len(descriptors) != 3:
            return False  # the caller is gone
        _import_early(content.decode())
        link, channel, log = socket.socket(fileno=descriptors[0]), *descriptors[1:]
        server, process = os.getpid(), os.fork()
        if process == 0:
            link.close()
            self._become_a_job(server, channel, log)
        os.close(channel)
        os.close(log)
        self._running[process] = link
        with suppress(OSError):
            link.send(str(process).encode())
        return True

    def _become_a_job(self, server: int, channel: int, log: int) -> NoReturn:
        try:
            end_with_parent(server)
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._woken, self._wake, self._requests.fileno()):
                os.close(descriptor)
            for other in self._running.values():
                other.close()
            for target in (1, 2):
                os.dup2(log, target)
            os.close(log)
            run_job(channel)
        except BaseException:  # noqa: BLE001  nothing of the server may run on in this process
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def _reap(self) -> None:
        for process in list(self._running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                self._answer(process, status)

    def _answer(self, process: int, status: int) -> None:
        with self._running.pop(process) as link, suppress(OSError):
            link.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _kill(self, process: int) -> None:
        """End a job and what it started."""
        for end in (os.killpg, os.kill):
            with suppress(OSError):
                end(process, signal.SIGKILL)


def _import_early(name: str) -> None:
    """Import a module of ours once for all jobs; others may change between jobs.

    What its jobs need and is slow to load it loads in a function `before_jobs`.
    """
    if name.startswith("ortkit.") and name not in sys.modules:
        with suppress(Exception):  # the job says why
            getattr(import_module(name), "before_jobs", _nothing)()


def _nothing() -> None:
    """Load nothing."""

"""Compiling many kernels at once, in processes whose crashes cost one kernel each."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from ortkit.errors import InternalError
from ortkit.isolation.ended import Crashed, Ended, TimedOut
from ortkit.isolation.processes import ServerKind
from ortkit.isolation.run import IsolatedObject
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.compile_child import Toolchain, load_toolchain
from ortkit.kernels.catalog import BACKENDS
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.targets.target import Target

#: A toolchain takes 1 to 3 s to load.
LOAD_SECONDS = 60.0
#: The process that has a toolchain loaded waits that long for more work; it takes some 150 MB,
#: which verification of a large model can use.
IDLE_SECONDS = 1.0
Compiled: TypeAlias = Kernel | CudaKernel | Refused


@dataclass(frozen=True)
class Job:
    """One kernel to compile.

    Args:
        backend: A name of the catalog.
        target: Resolved (no "native").
        folder: An empty folder of this job, for the code.
        choices: Of a backend that has several kernels for the region; see `Tunable`.
        is_trial: Whether it is only to be timed; see `Tunable.compile_as`.
    """

    backend: str
    signature: RegionSignature
    target: Target
    folder: Path
    choices: str = ""
    is_trial: bool = False


def compile_all(
    jobs: Sequence[Job],
    count: Callable[[int, int], None],
    kernel_seconds: float | None = None,
) -> list[Compiled]:
    """Return for each job its kernel, or what the toolchain said last.

    Args:
        jobs: What to compile.
        count: Called with how many are done, and of how many.
        kernel_seconds: How long one may take; None for `seconds_for` its target.
    """
    if not jobs:
        return []
    if kernel_seconds is None:
        kernel_seconds = max(seconds_for(job.target) for job in jobs)
    with _lock:
        return _Batch(jobs, kernel_seconds).run(count)


@contextmanager
def staying(seconds: float) -> Iterator[None]:
    """Let the processes that have toolchains loaded wait that long for more work.

    For those who compile again and again with pauses: loading a toolchain takes some seconds.
    They end with the block, unless they stay that long outside it.
    """
    global _idle_seconds
    if seconds <= _idle_seconds:
        yield
        return
    before, _idle_seconds = _idle_seconds, seconds
    _end_servers()
    try:
        yield
    finally:
        _idle_seconds = before
        _end_servers()


def seconds_for(target: Target) -> float:
    """Return how long a kernel for a target may take."""
    traits = target.traits
    return traits.kernel_seconds * (len(target.levels) + traits.has_portable_image)


def cores() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class _Batch:
    """Jobs that are compiled by a few processes, each of them held by a thread."""

    def __init__(self, jobs: Sequence[Job], seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._waiting = deque(range(len(jobs)))
        self._done: SimpleQueue[tuple[int, Compiled | BaseException]] = SimpleQueue()
        self._broken: dict[str, Refused] = {}
        """By backend: why its toolchain compiles nothing."""

    def run(self, count: Callable[[int, int], None]) -> list[Compiled]:
        jobs = self._jobs
        least = min(job.target.traits.least_kernels for job in jobs)
        workers = [_Worker() for _ in range(min(cores(), max(1, len(jobs) // least)))]
        threads = [threading.Thread(target=self._work, args=[each]) for each in workers]
        found: dict[int, Compiled] = {}
        try:
            for thread in threads:
                thread.start()
            count(0, len(jobs))
            while len(found) < len(jobs):
                number, result = self._done.get()
                if isinstance(result, BaseException):
                    raise result
                found[number] = result
                count(len(found), len(jobs))
        finally:
            self._waiting.clear()
            for worker in workers:
                worker.close()
            for thread in threads:
                thread.join()
        return [found[number] for number in range(len(jobs))]

    def _work(self, worker: _Worker) -> None:
        while True:
            try:
                number = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._done.put((number, self._compiled(worker, self._jobs[number])))
            except BaseException as error:  # noqa: BLE001  raised where the batch is waited for
                self._done.put((number, error))

    def _compiled(self, worker: _Worker, job: Job) -> Compiled:
        if (refused := self._broken.get(job.backend)) is not None:
            return refused
        if (refused := worker.load(job.backend)) is not None:
            self._broken[job.backend] = refused
            return refused
        return worker.compile(job, self._seconds)


class _Worker:
    """A process that has a toolchain loaded, and is replaced after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backend = ""
        self._process: IsolatedObject[Toolchain] | None = None
        self._is_closed = False

    def load(self, backend: str) -> Refused | None:
        """Let there be a process with a toolchain; returns why there is none."""
        with self._lock:
            if self._is_closed:
                return Refused("it was interrupted")
            if self._process is not None:
                if self._backend == backend and self._process.is_alive:
                    return None
                self._process.close()
            self._backend = backend
            try:
                name = BACKENDS[backend]
                self._process = IsolatedObject(Toolchain, name, server=_server(name))
            except InternalError as error:
                self._process = None
                return Refused(f"the compiler does not start: {error.problem}")
        problem = self._process.call(LOAD_SECONDS, Toolchain.problem)
        if isinstance(problem, Ended):
            return Refused(_ending(problem))
        return Refused(f"the toolchain does not load: {problem}") if problem else None

    def compile(self, job: Job, seconds: float) -> Compiled:
        """Compile a kernel; the toolchain is loaded."""
        assert self._process is not None
        found = self._process.call(
            seconds, Toolchain.compile, job.signature, job.target, job.folder, job.choices,
            job.is_trial,
        )  # fmt: skip
        if isinstance(found, Ended):
            return Refused(_ending(found))
        return found if isinstance(found, Refused) else replace(found, backend=job.backend)

    def close(self) -> None:
        """End the process, also while it compiles."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.close()


def _ending(found: Ended) -> str:
    """Say how a compiling process ended, and what it printed last."""
    if isinstance(found, TimedOut):
        how = f"did not end within {found.seconds:g} seconds"
    else:
        how = str(found)
    said = found.said if isinstance(found, TimedOut | Crashed) else ""
    return f"the compiler {how}{': ' if said else ''}{said}"


#: Batches take turns: each uses all processors.
_lock = threading.Lock()
_servers: dict[str, ServerKind] = {}
"""By backend, "module:attribute": what has its toolchain loaded and forks the workers."""
_idle_seconds = IDLE_SECONDS


def _server(backend: str) -> ServerKind:
    """Return what workers are forked from, with the toolchain of "module:attribute"."""
    if backend not in _servers:
        _servers[backend] = ServerKind(
            load_toolchain, backend, purpose="toolchain", idle_seconds=_idle_seconds
        )
    return _servers[backend]


def _end_servers() -> None:
    with _lock:
        for kind in _servers.values():
            with kind.lock:
                kind.end()
        _servers.clear()

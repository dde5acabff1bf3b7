"""Compiling many kernels at once, in processes whose crashes cost one kernel each."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.compile_child import RESULT, Batch, Done, last_lines
from ortkit.kernels.build.compile_child import Job as ChildJob
from ortkit.kernels.build.record import kernel_from
from ortkit.kernels.catalog import BACKENDS
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder, tools_in

#: For one kernel and GPU architecture; they take some 20 to 80 ms on CPUs, and on GPUs 0.3 s for
#: each variant, of which there are up to 16.
KERNEL_SECONDS = 60.0
#: A toolchain takes 1 to 3 s to load.
LOAD_SECONDS = 60.0
#: The process that has a toolchain loaded waits that long for more work; it takes some 150 MB,
#: which verification of a large model can use.
IDLE_SECONDS = 1.0
#: From closing its pipes to its end: on a busy machine that takes seconds, and what ended for lack
#: of work must not be taken for what crashed.
_END_SECONDS = 10.0
_START = (
    "import json, sys; path, idle = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from ortkit.kernels.build.compile_child import main; main(idle)"
)


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
) -> list[Kernel | CudaKernel | Refused]:
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
        try:
            try:
                return _compiler().run(jobs, count, kernel_seconds)
            except _IdleError:
                return _compiler().run(jobs, count, kernel_seconds)
        except (OSError, _IdleError) as error:
            return [Refused(f"no compiling process can be started: {error}")] * len(jobs)


@contextmanager
def staying(seconds: float) -> Iterator[None]:
    """Let the compiling process wait that long for more work; it ends with the block.

    For those who compile again and again with pauses: loading a toolchain takes some seconds.
    """
    global _idle_seconds
    with _lock:
        _end()  # it may be about to end by itself
    before, _idle_seconds = _idle_seconds, seconds
    try:
        yield
    finally:
        _idle_seconds = before
        with _lock:
            _end()


def seconds_for(target: Target) -> float:
    """Return how long a kernel for a target may take."""
    return KERNEL_SECONDS * (len(target.levels) + target.traits.has_portable_image)


class _GoneError(Exception):
    """The compiling process has ended; the message holds its last lines."""


class _IdleError(Exception):
    """The compiling process had ended for lack of work before it got some."""


class _Compiler:
    """A process that has loaded, or will load, the toolchains; see `compile_child`."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self.folder = TemporaryFolder("toolchain")
        given = json.dumps([[path or str(Path.cwd()) for path in sys.path], _idle_seconds])
        # In a session of its own: an interrupt from the keyboard is the caller's to act on.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            start_new_session=True, bufsize=0, env=tools_in(self.folder.path),
        )  # fmt: skip
        self._received = b""

    @property
    def is_usable(self) -> bool:
        """Whether the process lives, and is not that of the process this one was forked from."""
        return self.owner == os.getpid() and self.process.poll() is None

    def run(
        self, jobs: Sequence[Job], count: Callable[[int, int], None], kernel_seconds: float
    ) -> list[Kernel | CudaKernel | Refused]:
        """Compile one batch. If it is interrupted, the process is ended."""
        least = min(job.target.traits.least_kernels for job in jobs)
        batch: Batch = {
            "jobs": [_child_job(job) for job in jobs],
            "workers": min(cores(), max(1, len(jobs) // least)),
            "seconds": kernel_seconds,
        }
        found: list[Kernel | CudaKernel | Refused | None] = [None] * len(jobs)
        count(0, len(jobs))
        try:
            self._send(json.dumps(batch).encode() + b"\n")
            for number in range(len(jobs)):
                done = self._receive(kernel_seconds + LOAD_SECONDS, is_first=number == 0)
                found[done["job"]] = _result(jobs[done["job"]], done["problem"])
                count(number + 1, len(jobs))
        except _GoneError as gone:
            return [one or Refused(str(gone)) for one in found]
        except BaseException:
            self.close()
            raise
        return [one or Refused("the compiler gave no answer") for one in found]

    def _send(self, content: bytes) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        view = memoryview(content)
        try:
            while view:
                view = view[stdin.write(view) :]
        except BrokenPipeError:
            raise self._gone("ended", is_waiting=True) from None

    def _receive(self, seconds: float, *, is_first: bool) -> Done:
        stdout = self.process.stdout
        assert stdout is not None
        while b"\n" not in self._received:
            if not select.select([stdout], [], [], seconds)[0]:
                raise self._gone(f"did not answer within {seconds:g} seconds", end_seconds=0.0)
            part = stdout.read(1 << 16)
            if not part:
                raise self._gone("ended", is_waiting=is_first)
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        done: Done = json.loads(line)
        return done

    def _gone(
        self, how: str, *, is_waiting: bool = False, end_seconds: float = _END_SECONDS
    ) -> _GoneError | _IdleError:
        """End what is left of the process and return its last words.

        Args:
            how: What is known of its end.
            is_waiting: It has not answered since it was last waiting for work.
            end_seconds: How long it may take to end, once it has closed its pipes.
        """
        if self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(end_seconds)
        code = self.process.poll()
        if code == 0 and is_waiting:
            self.close()
            return _IdleError("it ends at once")
        if code is not None and code < 0:
            how = f"crashed with signal {-code} ({signal.Signals(-code).name})"
        self.log.seek(0)
        last = last_lines(self.log.read().decode(errors="replace"))
        self.close()
        return _GoneError(f"the compiling process {how}{': ' if last else ''}{last}")

    def close(self) -> None:
        """End the process and its workers."""
        if self.owner != os.getpid():
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.folder.cleanup()
        for file in (self.process.stdin, self.process.stdout, self.log):
            if file is not None:
                file.close()


_lock = threading.Lock()
# Kept from call to call, because loading a toolchain takes longer than compiling some kernels.
_current: _Compiler | None = None
_idle_seconds = IDLE_SECONDS


def _compiler() -> _Compiler:
    """Return a process that waits for work; the caller holds the lock."""
    global _current
    if _current is None or not _current.is_usable:
        if _current is not None:
            _current.close()
        _current = _Compiler()
    return _current


@atexit.register
def _end() -> None:
    if _current is not None:
        _current.close()


def cores() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _child_job(job: Job) -> ChildJob:
    inputs, outputs = (
        [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tensors]
        for tensors in (job.signature.inputs, job.signature.outputs)
    )
    return {
        "backend": BACKENDS[job.backend],
        "name": job.signature.name,
        "body": job.signature.body,
        "inputs": inputs,
        "outputs": outputs,
        "target": [job.target.kind, job.target.level],
        "folder": str(job.folder),
        "choices": job.choices,
        "is_trial": job.is_trial,
    }


def _result(job: Job, problem: str) -> Kernel | CudaKernel | Refused:
    if problem:
        return Refused(problem)
    try:
        result: dict[str, Any] = json.loads((job.folder / RESULT).read_text("utf-8"))
        files = {path.name: path for path in job.folder.iterdir()}
        kernel = kernel_from(
            result["record"],
            job.signature.key,
            job.backend,
            job.target,
            files,
            float(result["seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Refused(f"the compiler left no result: {error}")
    return kernel or Refused("the compiler left no result that can be read")

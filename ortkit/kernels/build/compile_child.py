"""The process that compiles: imports a toolchain once, forks workers, survives what they do.

It reads batches from stdin and writes one line for each job to stdout, both as JSON. A worker
that crashes or does not end in time costs the job it was at. Nothing else runs in this process,
so that forking is safe: the caller's may have ONNX Runtime's threads.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, TypedDict, cast

from ortkit.errors import OrtkitError
from ortkit.kernels.backend import KernelBackend
from ortkit.kernels.build.record import record_of
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.tunable import Tunable
from ortkit.parent import end_with_parent
from ortkit.targets.target import Target

#: The file that a worker leaves in a job's folder beside the object.
RESULT = "result.json"
_MOST_LINES = 5
_MOST_CHARACTERS = 600


class Job(TypedDict):
    """One kernel to compile."""

    backend: str  # "module:attribute"
    name: str
    body: str
    inputs: list[list[Any]]  # name, element type, shape
    outputs: list[list[Any]]
    target: list[str]  # kind, level
    folder: str  # for the object and the result
    choices: str  # empty for the backend's own
    is_trial: bool


class Batch(TypedDict):
    """Jobs, and how to work on them."""

    jobs: list[Job]
    workers: int
    seconds: float  # for one job


class Done(TypedDict):
    """What became of a job: `problem` is empty if its folder holds the result."""

    job: int
    problem: str


def main(idle_seconds: float) -> None:
    """Serve batches until stdin ends or none comes for `idle_seconds`."""
    # What a toolchain prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        while ready.select(idle_seconds):
            line = _line(requests)
            if not line:
                return
            try:
                _Server(json.loads(line), requests.fileno(), answers).run()
            except BrokenPipeError:
                return  # the caller is gone


def _line(file: IO[bytes]) -> bytes:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = file.read(1 << 16)
        if not part:
            return b""
        parts.append(part)
    return b"".join(parts)


@dataclass
class _Worker:
    process: int
    orders: int
    """Written to: the number of a job."""
    answers: int
    """Read from: a line for each job, empty if all went well."""
    log: IO[bytes]
    """What the worker prints."""
    job: int = -1
    until: float = 0.0
    received: bytes = b""


class _Server:
    """One batch."""

    def __init__(self, batch: Batch, requests: int, answers: IO[str]) -> None:
        self.requests = requests
        """Ends with the caller."""
        self.jobs = batch["jobs"]
        self.most = batch["workers"]
        self.seconds = batch["seconds"]
        self.answers = answers
        self.waiting: deque[int] = deque()
        self.workers: list[_Worker] = []

    def run(self) -> None:
        absent = {spec: _load(spec) for spec in {job["backend"] for job in self.jobs}}
        for number, job in enumerate(self.jobs):
            if absent[job["backend"]]:
                self.tell(number, absent[job["backend"]])
            else:
                self.waiting.append(number)
        try:
            while self.waiting or self.workers:
                while self.waiting and len(self.workers) < self.most:
                    self.start()
                self.listen()
        finally:
            for worker in list(self.workers):
                self.end(worker, kill=True)

    def tell(self, number: int, problem: str) -> None:
        done: Done = {"job": number, "problem": problem}
        self.answers.write(json.dumps(done) + "\n")
        self.answers.flush()

    def start(self) -> None:
        """Fork a worker and give it its first job."""
        orders_out, orders_in = os.pipe()
        answers_out, answers_in = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        server, process = os.getpid(), os.fork()
        if process == 0:
            end_with_parent(server)
            others = [fd for one in self.workers for fd in (one.orders, one.answers)]
            for descriptor in (orders_in, answers_out, *others, self.answers.fileno()):
                os.close(descriptor)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _work(self.jobs, orders_out, answers_in)
        os.close(orders_out)
        os.close(answers_in)
        worker = _Worker(process, orders_in, answers_out, log)
        self.workers.append(worker)
        self.order(worker)

    def order(self, worker: _Worker) -> None:
        worker.job = self.waiting.popleft()
        worker.until = time.monotonic() + self.seconds
        worker.log.seek(0)
        worker.log.truncate()
        os.write(worker.orders, f"{worker.job}\n".encode())

    def listen(self) -> None:
        """Wait for an answer, an end, or the time to be over; then go on with the next job."""
        left = min(worker.until for worker in self.workers) - time.monotonic()
        ready = select.poll()
        ready.register(self.requests, 0)  # which tells of the end alone
        for worker in self.workers:
            ready.register(worker.answers, select.POLLIN)
        heard = {descriptor for descriptor, _ in ready.poll(1000 * max(0.0, left))}
        if self.requests in heard:
            raise BrokenPipeError("the caller is gone")
        for worker in [one for one in self.workers if one.answers in heard]:
            part = os.read(worker.answers, 1 << 16)
            worker.received += part
            if not part:
                status = self.end(worker)
                self.tell(worker.job, f"the compiler {_ending(status)}{worker.received.decode()}")
            elif worker.received.endswith(b"\n"):
                problem, worker.received = worker.received.decode().strip(), b""
                self.tell(worker.job, json.loads(problem))
                if self.waiting:
                    self.order(worker)
                else:
                    self.end(worker)
        for worker in [one for one in self.workers if one.until < time.monotonic()]:
            self.end(worker, kill=True)
            problem = f"the compiler did not end within {self.seconds:g} seconds"
            self.tell(worker.job, f"{problem}{worker.received.decode()}")

    def end(self, worker: _Worker, *, kill: bool = False) -> int:
        """Let a worker end; what it printed last becomes its `received`. Returns its status."""
        if kill:
            os.kill(worker.process, signal.SIGKILL)
        os.close(worker.orders)
        _, status = os.waitpid(worker.process, 0)
        os.close(worker.answers)
        worker.log.seek(0)
        last = last_lines(worker.log.read().decode(errors="replace"))
        worker.received = f": {last}".encode() if last else b""
        worker.log.close()
        self.workers.remove(worker)
        return status


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with code {code}"
    return f"crashed with signal {-code} ({signal.Signals(-code).name})"


def last_lines(text: str) -> str:
    """Return the end of what a tool printed, as one line."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return " | ".join(line for line in lines[-_MOST_LINES:] if line)[-_MOST_CHARACTERS:]


def _load(spec: str) -> str:
    """Import a backend's toolchain; returns why that fails, empty if it does not."""
    try:
        _backend(spec).load()
    except Exception as error:  # noqa: BLE001  whatever stops a toolchain is the answer
        return f"the toolchain does not load: {last_lines(str(error)) or type(error).__name__}"
    return ""


def _backend(spec: str) -> KernelBackend:
    module, _, attribute = spec.partition(":")
    return cast(KernelBackend, getattr(import_module(module), attribute)())


def _work(jobs: list[Job], orders: int, answers: int) -> NoReturn:
    """Compile what is ordered until the orders end."""
    try:
        # Toolchains print the stack of a crash, which buries what they said before it.
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(orders, encoding="utf-8") as lines:
            for line in lines:
                problem = _compile(jobs[int(line)])
                os.write(answers, json.dumps(problem).encode() + b"\n")
    except BaseException:  # noqa: BLE001  nothing of the forked process may run on
        os._exit(1)
    os._exit(0)


def _compile(job: Job) -> str:
    inputs, outputs = (
        tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in tensors)
        for tensors in (job["inputs"], job["outputs"])
    )
    signature = RegionSignature(job["name"], job["body"], inputs, outputs)
    kind, level = job["target"]
    folder = Path(job["folder"])
    try:
        target = Target(cast(Any, kind), level)
        backend = _backend(job["backend"])
        kernel = (
            backend.compile_as(signature, target, folder, job["choices"], is_trial=job["is_trial"])
            if (job["choices"] or job["is_trial"]) and isinstance(backend, Tunable)
            else backend.compile(signature, target, folder)
        )
        result = {
            "seconds": kernel.compile_seconds,
            "record": record_of(kernel),
        }
        (folder / RESULT).write_text(json.dumps(result), "utf-8")
    except OrtkitError as error:
        return last_lines(error.problem)
    except Exception as error:  # noqa: BLE001  one region, never the whole call
        return last_lines(f"{type(error).__name__}: {error}")
    return ""

"""Worker processes that take the next case each; one that dies is a crash of its case."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, Self

from ortkit.errors import UserError
from ortkit.provider.conformance.cases import case_folder
from ortkit.provider.conformance.subject import Subject
from ortkit.provider.conformance.verdict import Verdict, from_record
from ortkit.runtime.child_process import child_command

_MODULE = "ortkit.provider.conformance.worker"
#: A worker must have registered the provider by then.
_START_SECONDS = 120.0
_SAID_LINES = 3


class Worker:
    """One process; a context manager."""

    def __init__(self, subject: Subject) -> None:
        """Start it.

        Raises:
            UserError: The provider is not what was written, or does not register.
        """
        told = {
            "text": subject.text,
            "library": None if subject.library is None else str(subject.library.resolve()),
            "options": dict(subject.options),
            "cases": str(case_folder().path),
        }
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            child_command(_MODULE, json.dumps(told)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip
        self._buffer = b""
        answer = self._answer(_START_SECONDS)
        if answer is None or "refused" in answer:
            code, said = self._process.poll(), self._last_words()
            self.close()
            if answer is not None:
                raise UserError(str(answer["refused"]))
            raise UserError(
                f"the provider's process ended before any case ({_ending(code)}): {said}",
                where=subject.text,
            )
        self.provider = str(answer["provider"])

    def judge(self, case: str, seconds: float) -> Verdict:
        """Have a case judged; afterwards the process may be dead, see `is_alive`."""
        started = time.perf_counter()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(case.encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(seconds)
        except BrokenPipeError:
            answer = None
        if answer is not None:
            return from_record(answer)
        taken = round(time.perf_counter() - started, 3)
        if self._process.poll() is None and taken < seconds:
            self._process.wait(timeout=10)
        code = self._process.poll()
        if code is None:
            self._process.kill()
            return Verdict(case, "crash", (), f"no answer in {seconds:.0f} s", taken)
        said = self._last_words()
        return Verdict(case, "crash", (), f"{_ending(code)}{': ' if said else ''}{said}", taken)

    @property
    def is_alive(self) -> bool:
        """Whether it can take another case."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next line; None if none comes in time, or the process ends."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        until = time.perf_counter() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = until - time.perf_counter()
                if left <= 0 or not selector.select(left):
                    return None
                read = os.read(descriptor, 1 << 16)
                if not read:
                    return None
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        """Return the end of what the process said on stderr."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-_SAID_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bench:
    """A worker that is replaced when it dies; a context manager."""

    def __init__(self, subject: Subject, seconds: float) -> None:
        """Start the first worker.

        Args:
            subject: What is tested.
            seconds: After so long a case counts as hung.

        Raises:
            UserError: The provider is not what was written, or does not register.
        """
        self._subject = subject
        self._seconds = seconds
        self._worker = Worker(subject)
        self.provider = self._worker.provider

    def judge(self, case: str) -> Verdict:
        """Have a case judged."""
        if not self._worker.is_alive:
            self._worker.close()
            self._worker = Worker(self._subject)
        return self._worker.judge(case, self._seconds)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def judge_all(
    benches: Sequence[Bench], cases: Sequence[str], count: Callable[[int, int], None]
) -> Iterator[Verdict]:
    """Yield the verdicts on all cases as they come; each bench takes the next case."""
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from queue import SimpleQueue

    free: SimpleQueue[Bench] = SimpleQueue()
    for bench in benches:
        free.put(bench)

    def one(case: str) -> Verdict:
        bench = free.get()
        try:
            return bench.judge(case)
        finally:
            free.put(bench)

    with ThreadPoolExecutor(len(benches)) as threads:
        pending = [threads.submit(one, case) for case in cases]
        try:
            for done, future in enumerate(as_completed(pending), 1):
                yield future.result()
                count(done, len(cases))
        except BaseException:
            for future in pending:
                future.cancel()
            raise


def _ending(code: int | None) -> str:
    if code is None:
        return "still running"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"

"""Worker processes that take the next case each; one that dies is a crash of its case."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from ortkit.errors import UserError
from ortkit.isolation.ended import Crashed, Ended, Failed, TimedOut
from ortkit.isolation.run import IsolatedObject
from ortkit.provider.conformance.cases import case_folder
from ortkit.provider.conformance.subject import Subject
from ortkit.provider.conformance.verdict import Verdict
from ortkit.provider.conformance.worker import CaseJudge, ConformanceJob

#: A worker must have registered the provider by then.
_START_SECONDS = 120.0


class Worker:
    """One process; a context manager."""

    def __init__(self, subject: Subject) -> None:
        """Start it.

        Raises:
            UserError: The provider is not what was written, or does not register.
        """
        library = None if subject.library is None else subject.library.resolve()
        job = ConformanceJob(replace(subject, library=library), case_folder().path)
        self._process = IsolatedObject(CaseJudge, job)
        name = self._process.call(_START_SECONDS, CaseJudge.register)
        if isinstance(name, Ended):
            self.close()
            if isinstance(name, Failed) and name.error is not None:
                raise UserError(str(name.error))
            raise UserError(
                f"the provider's process ended before any case ({_ending(name)})",
                where=subject.text,
            )
        self.provider = name

    def judge(self, case: str, seconds: float) -> Verdict:
        """Have a case judged; afterwards the process may be dead, see `is_alive`."""
        started = time.perf_counter()
        found = self._process.call(seconds, CaseJudge.judge, case)
        if isinstance(found, Verdict):
            return found
        elapsed = round(time.perf_counter() - started, 3)
        return Verdict(case, "crash", (), _ending(found), elapsed)

    @property
    def is_alive(self) -> bool:
        """Whether it can take another case."""
        return self._process.is_alive

    def close(self) -> None:
        """End the process."""
        self._process.close()

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


def _ending(ended: Ended) -> str:
    match ended:
        case TimedOut(seconds):
            return f"no answer in {seconds:.0f} s"
        case Crashed(number, said):
            names = {Signal.value: Signal.name for Signal in signal.Signals}
            return f"killed by {names.get(number, f'signal {number}')}{said and f': {said}'}"
        case Failed(problem, status):
            return f"exit code {status}: {problem}"
    return str(ended)

"""Kernels run beside their bodies, in a process of its own; see `process.py`.

A kernel that crashes ends that process and not the caller's: it reports first what is about to
run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Protocol

import numpy as np
import onnx

from ortkit.runtime.ort import preload_onnxruntime
from ortkit.verify.kernels.blocks import Operand, same_bytes
from ortkit.verify.kernels.bodies import Body
from ortkit.verify.kernels.cases import Cases
from ortkit.verify.kernels.expected import FLOAT64, Expected
from ortkit.verify.kernels.inputs import Kind
from ortkit.verify.kernels.job import (
    KernelJob,
    KernelsJob,
    NotRunError,
    NotThisWayError,
    Step,
    Tell,
    WrongError,
    one_line,
)
from ortkit.verify.kernels.judge import Found
from ortkit.verify.kernels.reference import Reference
from ortkit.verify.kernels.report import KernelRow, Verdict
from ortkit.verify.kernels.row_groups import RowGroup, kind_groups

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime


class Ways(Protocol):
    """How a kernel and its body are run."""

    body: Body

    @property
    def note(self) -> str:
        """What of the kernel was not run."""
        ...

    def ways(
        self, operands: Sequence[Operand], body: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, Callable[[], list[np.ndarray]]]]:
        """Yield ways to run the kernel, and what they are called."""
        ...


class _LateError(BaseException):
    """The time of a kernel is over; the interpreter passes it on, as it is no Exception."""


def check_kernels(job: KernelsJob, tell: Tell) -> None:
    """Tell the verdict on each kernel of a job, and before that what is about to run."""
    if any(each.source for each in job.kernels):
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    import onnxruntime

    for number in range(job.first, len(job.kernels)):
        tell(Check(onnxruntime, job, number, tell).row())


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise `_LateError` in the block after some seconds of processor time; 0 for never."""

    def end(*_: object) -> None:
        raise _LateError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass
class Check:
    """The check of one kernel."""

    ort: ModuleType
    job: KernelsJob
    number: int
    tell: Tell
    runs: int = 0
    tried: int = 0
    is_late: bool = False
    cases: int = 0
    skipped: int = 0
    left_out: int = 0
    worst: Found = field(default_factory=Found)
    why_skipped: str = ""
    where: str = ""
    reference: str = FLOAT64
    remark: str = ""

    @property
    def kernel(self) -> KernelJob:
        return self.job.kernels[self.number]

    def row(self) -> KernelRow:
        """Run all cases; return the verdict."""
        started = time.perf_counter()
        verdict: Verdict = "passed"
        reason, needs_hardware = "", False
        try:
            self._all_cases()
        except NotRunError as error:
            verdict, reason, needs_hardware = "not run", str(error), error.needs_hardware
        except WrongError as error:
            verdict, reason = "failed", ": ".join(filter(None, [self.where, str(error)]))
        return KernelRow(
            op_type=self.kernel.op,
            verdict=verdict,
            reason=reason,
            needs_hardware=needs_hardware,
            error=_finite(self.worst.error),
            body_error=_finite(self.worst.body_error),
            ratio=_finite(self.worst.ratio),
            cases=self.cases,
            runs=self.runs,
            skipped=self.skipped,
            left_out=self.left_out,
            seconds=time.perf_counter() - started,
            reference=self.reference,
            is_interpreted=self.kernel.source is not None,
            note=self.remark,
        )

    def _all_cases(self) -> None:
        function = onnx.FunctionProto.FromString(self.kernel.body.function.read_bytes())
        ways = _ways(self.ort, self.job, self.kernel)
        try:
            with _limit(self.job.most_seconds):
                self._run_cases(ways, function)
        except _LateError:
            self.is_late = True
        if not self.runs and self.is_late:
            reason = f"it does not end within {self.job.most_seconds:g} seconds"
            raise NotRunError(reason, needs_hardware=True)
        if not self.tried:
            raise NotRunError(f"its body runs at no size that was tried: {self.why_skipped}")
        self.remark = ways.note
        if not self.runs:
            raise NotRunError(self.remark, needs_hardware=True)

    def _run_cases(self, ways: Ways, function: onnx.FunctionProto) -> None:
        kernel, started = self.kernel, time.process_time()
        part = self.job.seconds / len(self.job.kernels)
        types = ways.body.types
        has_special = kernel.special_values and not ways.body.special_values_differ
        reference = Reference(function, types)
        cases = Cases(kernel, function, types, has_special=has_special)
        if kernel.rows is not None:
            if 0 in kernel.bad_cases:
                self.skipped += 1
                return
            for kinds in kind_groups(cases.kinds(), kernel.rows, kernel.inputs):
                self._try_rows(ways, reference, RowGroup(kernel.rows, kinds), cases)
            return
        left = set(range(len(kernel.cases)))
        self.left_out = len(left)
        for number, kind, is_required in cases.order():
            if number in kernel.bad_cases:
                self.skipped += 1
                left.discard(number)
                continue
            if time.process_time() - started > part and not is_required:
                continue
            self._try(ways, reference, number, kind, cases.inputs(number, kind))
            left.discard(number)
            self.left_out = len(left)

    def _try(
        self,
        ways: Ways,
        reference: Reference,
        number: int,
        kind: Kind,
        operands: Sequence[Operand],
    ) -> None:
        """Run one case with one kind of values, in every way that a session may run it."""
        shapes = ", ".join(str(list(x.array.shape)) for x in operands if not x.is_constant)
        self.tell(Step(self.number, "body", number))
        try:
            body = ways.body.run(operands)
        except Exception as error:  # noqa: BLE001  no such run: another size is tried
            self.skipped += 1
            self.why_skipped = one_line(error)
            return
        self.tried += 1
        expected = Expected(
            reference, operands, body, is_number_for_nan=ways.body.is_number_for_nan
        )
        self._say_precision(expected)
        what = f"inputs {shapes or 'constant'}, {kind} values"
        judge = partial(self._judge, expected)
        self.cases += self._run_ways(ways.ways(operands, body), number, what, judge)

    def _try_rows(self, ways: Ways, reference: Reference, group: RowGroup, cases: Cases) -> None:
        """Run a large kernel on a batch of rows of several kinds, in every way."""
        parts = [cases.inputs(0, kind) for kind in group.kinds]
        given = parts
        if len(parts) > 1:
            count = group.job.rows
            parts = [group.row(each, number % count) for number, each in enumerate(parts)]
            given = list(group.chunks(parts))
        self.tell(Step(self.number, "body", 0))
        try:
            bodies = [ways.body.run(operands) for operands in given]
        except Exception as error:  # noqa: BLE001  no such run
            self.skipped += 1
            self.why_skipped = one_line(error)
            return
        self.tried += 1
        expected = [
            Expected(reference, *each, is_number_for_nan=ways.body.is_number_for_nan)
            for each in zip(given, bodies, strict=True)
        ]
        for each in expected:
            self._say_precision(each)
        if len(parts) > 1:
            axes, count = group.job.outputs, group.job.rows
            rows_of = [divmod(number, count) for number in range(len(parts))]
            expected = [expected[chunk].row(number, axes) for chunk, number in rows_of]
            group = group.thinned
        operands = group.operands(parts)
        shapes = ", ".join(str(list(x.array.shape)) for x in operands if not x.is_constant)

        def judge(got: Sequence[np.ndarray]) -> None:
            for rows in group.outputs(got):
                for each, outputs in zip(expected, rows, strict=True):
                    self._judge(each, outputs)

        runs = ways.ways(operands, group.like_outputs(bodies[0]))
        what = f"inputs {shapes}, rows of {', '.join(group.kinds)} values"
        self.cases += len(group.kinds) * self._run_ways(runs, 0, what, judge)

    def _say_precision(self, expected: Expected) -> None:
        if expected.precision != FLOAT64:
            self.reference = expected.precision

    def _run_ways(
        self,
        runs: Iterator[tuple[str, Callable[[], list[np.ndarray]]]],
        number: int,
        what: str,
        judge: Callable[[Sequence[np.ndarray]], None],
    ) -> bool:
        """Run a kernel in all ways, and judge what differs; return whether it ran in any."""
        first: list[np.ndarray] = []
        for way, run in runs:
            self.where = f"{what}, {way}"
            self.tell(Step(self.number, "kernel", number, self.where))
            try:
                got = run()
            except NotThisWayError:
                continue
            except Exception as error:
                raise WrongError(one_line(error)) from error
            self.runs += 1
            self.tell(Step(self.number, "judging", number, self.where))
            if not first or not all(map(same_bytes, first, got)):
                judge(got)
            first = first or got
        return bool(first)

    def _judge(self, expected: Expected, got: Sequence[np.ndarray]) -> None:
        for index, found in enumerate(expected.judge(got, self.kernel.roundings)):
            if found.reason or found.ratio > self.worst.ratio:
                self.worst = found
            if found.reason:
                raise WrongError(f"output {index} {found.reason}")


def _ways(ort: ModuleType, job: KernelsJob, kernel: KernelJob) -> Ways:
    """Return how a kernel is run: by Triton's interpreter if its source is given."""
    from ortkit.verify.kernels.native import NativeWays

    if not kernel.source:
        return NativeWays(ort, job, kernel)
    from ortkit.verify.kernels.interpreted import InterpretedWays

    return InterpretedWays(ort, job, kernel)


def _finite(number: float) -> float:
    return number if np.isfinite(number) else -1.0

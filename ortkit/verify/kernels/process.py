"""Processes that run kernels beside their bodies, until each kernel has a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortkit.errors import InternalError
from ortkit.isolation.ended import Ended, TimedOut
from ortkit.isolation.run import stream_isolated
from ortkit.kernels.accuracy import roundings_of, special_values_differ
from ortkit.verify.kernels.child import check_kernels
from ortkit.verify.kernels.few_rows import FewRows, few_rows
from ortkit.verify.kernels.job import (
    CaseSizes,
    InputSpec,
    KernelJob,
    KernelsJob,
    RowsJob,
    Step,
)
from ortkit.verify.kernels.models import KernelNode, in_place_model, plain_model
from ortkit.verify.kernels.report import KernelRow, Verdict
from ortkit.verify.kernels.sizes import INTERPRETED, RUN, size_cases
from ortkit.verify.kernels.source import KernelSource, write_source

#: Seconds after which kernels are not waited for, and more for each kernel.
_TIMEOUT, _TIMEOUT_PER_KERNEL = 60.0, 10.0
#: A body that ends the process at more sizes than these is not run at others.
_MOST_BAD_CASES = 3
_NO_TIME = "there was no time left"
#: Seconds for each second of processor time that a kernel may take, on a machine with other work.
_SLOW = 10.0


@dataclass(frozen=True)
class Order:
    """A kernel to run.

    Args:
        kernel: The kernel.
        way: What it is run by, and all that its verdict depends on but the library.
        source: What Triton's interpreter runs; None to run the kernel of the library.
    """

    kernel: KernelNode
    way: str
    source: KernelSource | None = None


class Checks:
    """One job, whose kernels are all run in the same way."""

    def __init__(
        self,
        orders: Sequence[Order],
        library: Path | None,
        custom_ops: Sequence[Path],
        folder: Path,
        seconds: float,
        most_seconds: float = 0.0,
    ) -> None:
        """Write the job.

        Args:
            orders: The kernels.
            library: Their library.
            custom_ops: Libraries that bodies need.
            folder: For files.
            seconds: Processor time for sizes that are not required, of all kernels together.
            most_seconds: Processor time after which a kernel is interrupted; 0 for never.
        """
        self._orders = orders
        self._folder = folder
        self._is_interpreted = any(order.source for order in orders)
        for_each = max(_TIMEOUT_PER_KERNEL, _SLOW * most_seconds)
        self._ends = time.monotonic() + seconds + _TIMEOUT + for_each * len(orders)
        self._job = KernelsJob(
            library,
            tuple(custom_ops),
            tuple(job_of(order, folder / str(n)) for n, order in enumerate(orders)),
            0,
            seconds,
            most_seconds,
        )

    def rows(self) -> list[KernelRow]:
        """Return a verdict for each kernel."""
        rows: list[KernelRow] = []
        attempts = 0
        while len(rows) < len(self._orders):
            if time.monotonic() > self._ends:
                left = range(len(rows), len(self._orders))
                return rows + [self._row(number, "not run", _NO_TIME) for number in left]
            attempts += 1
            found, last, ended = self._run(len(rows))
            rows += found
            if len(rows) == len(self._orders):
                break
            if ended is None or (last is None and not found and attempts > len(self._orders)):
                raise InternalError(f"the check of kernels {ended or 'ended early'}")
            row = self._ended_at(len(rows), last, ended)
            if row is not None:
                rows.append(row)
        return rows

    def _run(self, first: int) -> tuple[list[KernelRow], Step | None, Ended | None]:
        """Run one process; return its verdicts, its last step after them, and how it ended."""
        rows: list[KernelRow] = []
        last: Step | None = None
        job = replace(self._job, first=first)
        seconds = max(1.0, self._ends - time.monotonic())
        for message in stream_isolated(check_kernels, job, timeout_seconds=seconds):
            if isinstance(message, Ended):
                return rows, last, message
            if isinstance(message, KernelRow):
                rows.append(message)
                last = None
            else:
                last = message
        return rows, last, None

    def _ended_at(self, number: int, last: Step | None, ended: Ended) -> KernelRow | None:
        """Return the verdict on the kernel that ended the process; None to try it again."""
        if last is None:
            return self._row(number, "not run", f"its sessions cannot be opened: {ended}")
        if last.what == "kernel" and self._is_interpreted and isinstance(ended, TimedOut):
            return self._row(number, "not run", _NO_TIME, needs_hardware=True)
        if last.what == "judging" and isinstance(ended, TimedOut):
            # The kernel ran: results of large inputs take long to be judged.
            return self._row(number, "not run", _NO_TIME)
        if last.what != "body":
            return self._row(number, "failed", f"{last.where}: the process {ended}")
        kernels = list(self._job.kernels)
        bad_cases = (*kernels[number].bad_cases, last.case)
        kernels[number] = replace(kernels[number], bad_cases=bad_cases)
        self._job = replace(self._job, kernels=tuple(kernels))
        if len(bad_cases) > _MOST_BAD_CASES:
            return self._row(number, "not run", f"with its function body the process {ended}")
        return None

    def _row(
        self, number: int, verdict: Verdict, reason: str, *, needs_hardware: bool = False
    ) -> KernelRow:
        return KernelRow(
            self._orders[number].kernel.op_type, verdict, reason, needs_hardware,
            is_interpreted=self._is_interpreted,
        )  # fmt: skip


def job_of(order: Order, folder: Path) -> KernelJob:
    """Write what a process needs to check a kernel."""
    kernel = order.kernel
    folder.mkdir()
    plain, in_place = folder / "plain.onnx", folder / "in_place.onnx"
    plain.write_bytes(plain_model(kernel).SerializeToString())
    in_place.write_bytes(in_place_model(kernel).SerializeToString())
    (folder / "function").write_bytes(kernel.function.SerializeToString())
    source, rows = None, few_rows(kernel) if order.source is None else None
    if order.source is not None:
        source = folder / "source"
        write_source(order.source, source)
    inputs = []
    for index, each in enumerate(kernel.inputs):
        if each.constant is None:
            inputs.append(InputSpec(each.dtype.value))
            continue
        path = folder / f"{index}.bin"
        path.write_bytes(each.constant.tobytes())
        shape = tuple(int(size) for size in each.constant.shape.numpy())
        inputs.append(InputSpec(each.dtype.value, path, shape))
    cases = size_cases(
        [each.shape for each in kernel.inputs if each.constant is None],
        [shape for shape in kernel.outputs if shape is not None],
        RUN if order.source is None else INTERPRETED,
    )
    return KernelJob(
        kernel.op_type,
        folder / "function",
        plain,
        in_place,
        source,
        tuple(inputs),
        tuple(CaseSizes(case.shapes, case.is_required) for case in cases),
        roundings_of(kernel.op_type),
        not special_values_differ(kernel.op_type),
        rows=None if rows is None else _rows_job(rows, folder),
    )


def _rows_job(few: FewRows, folder: Path) -> RowsJob:
    """Write the body for fewer rows."""
    function, plain = folder / "few_function", folder / "few.onnx"
    function.write_bytes(few.kernel.function.SerializeToString())
    plain.write_bytes(plain_model(few.kernel).SerializeToString())
    shapes = [each.shape for each in few.kernel.inputs if each.constant is None]
    return RowsJob(
        function,
        plain,
        few.batch,
        few.rows,
        tuple(tuple(size for size in shape if isinstance(size, int)) for shape in shapes),
        few.inputs,
        few.outputs,
    )

"""Processes that run kernels beside their bodies, until each kernel has a verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortkit.errors import InternalError
from ortkit.isolation.run import LATE, run_isolated
from ortkit.kernels.accuracy import roundings_of, special_values_differ
from ortkit.verify.kernels import child
from ortkit.verify.kernels.job import InputSpec, Job, KernelJob, Outcome
from ortkit.verify.kernels.models import KernelNode, in_place_model, plain_model
from ortkit.verify.kernels.report import KernelRow, Verdict
from ortkit.verify.kernels.sizes import INTERPRETED, RUN, size_cases
from ortkit.verify.kernels.source import KernelSource, write_source

#: Seconds after which kernels are not waited for, and more for each kernel.
_TIMEOUT, _TIMEOUT_PER_KERNEL = 60.0, 10.0
#: A body that ends the process at more sizes than these is not run at others.
_MOST_BAD_CASES = 3
_CHILD = child.__name__
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
        self._job: Job = {
            "library": "" if library is None else str(library.absolute()),
            "custom_ops": [str(path.absolute()) for path in custom_ops],
            "kernels": [job_of(order, folder / str(n)) for n, order in enumerate(orders)],
            "first": 0,
            "status": "",
            "seconds": seconds,
            "most_seconds": most_seconds,
        }

    def rows(self) -> list[KernelRow]:
        """Return a verdict for each kernel."""
        rows: list[KernelRow] = []
        attempts = 0
        while len(rows) < len(self._orders):
            if time.monotonic() > self._ends:
                left = range(len(rows), len(self._orders))
                return rows + [self._row(number, "not run", _NO_TIME) for number in left]
            attempts += 1
            self._job["first"] = len(rows)
            status = self._folder / f"status{attempts}.jsonl"
            status.touch()
            self._job["status"] = str(status)
            ended = self._run(attempts)
            outcomes = _read(status)
            rows += [self._done(outcome) for outcome in outcomes if outcome["at"] == "done"]
            if len(rows) == len(self._orders):
                break
            last = outcomes[-1] if outcomes else {}
            if not ended or (not outcomes and attempts > len(self._orders)):
                raise InternalError(f"the check of kernels {ended or 'ended early'}")
            row = self._ended_at(len(rows), last, ended)
            if row is not None:
                rows.append(row)
        return rows

    def _ended_at(self, number: int, last: Outcome, ended: str) -> KernelRow | None:
        """Return the verdict on the kernel that ended the process; None to try it again."""
        kernel = self._job["kernels"][number]
        if last.get("kernel") != number:
            return self._row(number, "not run", f"its sessions cannot be opened: {ended}")
        if last["at"] == "kernel" and self._is_interpreted and ended.startswith(LATE):
            return self._row(number, "not run", _NO_TIME, needs_hardware=True)
        if last["at"] == "kernel":
            return self._row(number, "failed", f"{last['what']}: the process {ended}")
        kernel["bad_cases"].append(last["case"])
        if len(kernel["bad_cases"]) > _MOST_BAD_CASES:
            return self._row(number, "not run", f"with its function body the process {ended}")
        return None

    def _done(self, outcome: Outcome) -> KernelRow:
        fields: dict[str, Any] = dict(outcome)
        number = fields.pop("kernel")
        del fields["at"]
        return self._row(number, **fields)

    def _row(self, number: int, verdict: Verdict, reason: str, **fields: Any) -> KernelRow:
        op_type = self._orders[number].kernel.op_type
        fields["is_interpreted"] = self._is_interpreted
        return KernelRow(op_type, verdict, reason, **fields)

    def _run(self, attempt: int) -> str:
        """Run one process; return how it ended badly, empty if it did not."""
        job_file, log = self._folder / "job.json", self._folder / f"log{attempt}.txt"
        job_file.write_text(json.dumps(self._job), encoding="utf-8")
        seconds = max(1.0, self._ends - time.monotonic())
        return run_isolated(_CHILD, str(job_file), log=log, timeout_seconds=seconds)


def _read(status: Path) -> list[Outcome]:
    lines = status.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def job_of(order: Order, folder: Path) -> KernelJob:
    """Write what a process needs to check a kernel."""
    kernel = order.kernel
    folder.mkdir()
    plain, in_place = folder / "plain.onnx", folder / "in_place.onnx"
    plain.write_bytes(plain_model(kernel).SerializeToString())
    in_place.write_bytes(in_place_model(kernel).SerializeToString())
    (folder / "function").write_bytes(kernel.function.SerializeToString())
    source = ""
    if order.source is not None:
        source = str(folder / "source")
        write_source(order.source, folder / "source")
    inputs: list[InputSpec] = []
    for index, each in enumerate(kernel.inputs):
        file, shape = "", []
        if each.constant is not None:
            path = folder / f"{index}.bin"
            path.write_bytes(each.constant.tobytes())
            file, shape = str(path), [int(size) for size in each.constant.shape.numpy()]
        inputs.append({"type": each.dtype.value, "constant": file, "shape": shape})
    cases = size_cases(
        [each.shape for each in kernel.inputs if each.constant is None],
        [shape for shape in kernel.outputs if shape is not None],
        RUN if order.source is None else INTERPRETED,
    )
    return {
        "op": kernel.op_type,
        "function": str(folder / "function"),
        "plain": str(plain),
        "in_place": str(in_place),
        "source": source,
        "inputs": inputs,
        "cases": [
            {"shapes": [list(shape) for shape in case.shapes], "is_required": case.is_required}
            for case in cases
        ],
        "roundings": roundings_of(kernel.op_type),
        "special_values": not special_values_differ(kernel.op_type),
        "bad_cases": [],
    }

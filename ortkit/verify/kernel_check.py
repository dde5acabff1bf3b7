"""Kernels one by one: each distinct one beside its function body, over many sizes.

A kernel of generated code serves all sizes, and a model is run at a few. Here each kernel is a
model of its own, run at the edges of its tiles with values of several kinds, on aligned memory and
not, by one thread and two. Its verdict is kept with its key, so that it is made once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from ortkit.errors import InternalError
from ortkit.isolation.run import run_isolated
from ortkit.kernels.accuracy import roundings_of, special_values_differ
from ortkit.runtime.ort import require_onnxruntime
from ortkit.temporary import TemporaryFolder
from ortkit.verify import kernel_child
from ortkit.verify.covering import Level
from ortkit.verify.kernel_models import KernelNode, in_place_model, kernel_nodes, plain_model
from ortkit.verify.kernel_sizes import size_cases
from ortkit.verify.kernel_verdicts import Verdicts
from ortkit.verify.verification import Gap

#: Seconds for the sizes that are not required, of all kernels of a model together.
SECONDS: Mapping[Level, float] = {"quick": 2.0, "full": 300.0}
#: Seconds after which kernels are not waited for, and more for each kernel.
_TIMEOUT, _TIMEOUT_PER_KERNEL = 60.0, 10.0
#: A body that ends the process at more sizes than these is not run at others.
_MOST_BAD_CASES = 3
_CHILD = kernel_child.__name__
_NO_TIME = "there was no time left"


@dataclass(frozen=True)
class KernelRow:
    """The verdict on one kernel."""

    op_type: str
    verdict: Literal["passed", "failed", "not run"]
    reason: str = ""
    """The case that failed and how, or why it was not run."""
    needs_hardware: bool = False
    """Whether only another machine can run it."""
    error: float = 0.0
    """The kernel's error where it is largest beside what is allowed, in epsilons of the result."""
    body_error: float = 0.0
    """What its body in working precision errs there."""
    ratio: float = 0.0
    """The error as a part of what is allowed."""
    cases: int = 0
    """Sizes and kinds of values that were tried."""
    runs: int = 0
    """Runs of the kernel: a case is run in several ways."""
    skipped: int = 0
    """Cases at which the body does not run."""
    left_out: int = 0
    """Sizes that there was no time for."""
    seconds: float = 0.0
    reference: str = "float64"
    """What it was compared with."""
    is_cached: bool = False
    """Whether the verdict is that of an earlier run."""


@dataclass(frozen=True)
class KernelReport:
    """The verdicts on the distinct kernels of a model."""

    rows: tuple[KernelRow, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[KernelRow, ...]:
        """The kernels that give something else than their bodies."""
        return tuple(row for row in self.rows if row.verdict == "failed")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The kernels that were not run for another reason than this machine's hardware.

        Those that lack hardware are listed by the check of the whole model.
        """
        reasons = Counter(
            row.reason for row in self.rows if row.verdict == "not run" and not row.needs_hardware
        )
        return tuple(
            Gap("1 kernel" if count == 1 else f"{count} kernels", f"alone: {reason}")
            for reason, count in reasons.items()
        )

    def summary(self) -> str:
        """Say in a few words what was checked."""
        run = [row for row in self.rows if row.verdict == "passed"]
        if not run:
            return "no kernel was run alone"
        kernels = "1 kernel" if len(run) == 1 else f"{len(run)} kernels"
        return (
            f"{kernels} alone in {sum(row.cases for row in run)} cases, at most "
            f"{max(row.ratio for row in run):.0%} of the allowed error"
        )

    def to_json(self) -> dict[str, object]:
        """Return the rows, as JSON's types."""
        return {"rows": [asdict(row) for row in self.rows], "seconds": round(self.seconds, 3)}


def check_kernels(
    model: ir.Model,
    library: Path,
    *,
    custom_ops: Sequence[Path] = (),
    seconds: float = SECONDS["quick"],
    verdicts: Verdicts | None = None,
) -> KernelReport:
    """Compare each distinct kernel of a model with its body.

    Args:
        model: A model with fused nodes and their bodies.
        library: Their kernels.
        custom_ops: Libraries that bodies need.
        seconds: For sizes that are not required, of all kernels together.
        verdicts: Verdicts that are kept; by default in the user's cache.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    started = time.perf_counter()
    kernels = list(kernel_nodes(model))
    verdicts = verdicts or Verdicts.of(library)
    rows: dict[str, KernelRow] = {}
    wanted = []
    for kernel in kernels:
        if kernel.problem:
            rows[kernel.op_type] = KernelRow(kernel.op_type, "not run", kernel.problem)
        elif (known := _known(verdicts, kernel, seconds)) is not None:
            rows[kernel.op_type] = known
        else:
            wanted.append(kernel)
    if wanted:
        require_onnxruntime()
        with TemporaryFolder("kernels") as folder:
            check = _Check(wanted, library, custom_ops, seconds, folder)
            for kernel, row in zip(wanted, check.rows(), strict=True):
                rows[kernel.op_type] = row
                if row.verdict == "passed":
                    verdicts.keep(kernel, asdict(row))
        verdicts.trim()
    found = tuple(rows[kernel.op_type] for kernel in kernels)
    return KernelReport(found, time.perf_counter() - started)


def _known(verdicts: Verdicts, kernel: KernelNode, seconds: float) -> KernelRow | None:
    """Return a kept verdict; None if it left out sizes that there is time for now."""
    found = verdicts.find(kernel)
    if found is None or (found["left_out"] and seconds > SECONDS["quick"]):
        return None
    return KernelRow(**{**found, "is_cached": True})


class _Check:
    """One job: processes are started until each kernel has a verdict."""

    def __init__(
        self,
        kernels: Sequence[KernelNode],
        library: Path,
        custom_ops: Sequence[Path],
        seconds: float,
        folder: Path,
    ) -> None:
        self._kernels = kernels
        self._folder = folder
        self._ends = time.monotonic() + seconds + _TIMEOUT + _TIMEOUT_PER_KERNEL * len(kernels)
        self._job: kernel_child.Job = {
            "library": str(library.absolute()),
            "custom_ops": [str(path.absolute()) for path in custom_ops],
            "kernels": [_job(kernel, folder / str(n)) for n, kernel in enumerate(kernels)],
            "first": 0,
            "status": "",
            "seconds": seconds,
        }

    def rows(self) -> list[KernelRow]:
        """Return a verdict for each kernel."""
        rows: list[KernelRow] = []
        attempts = 0
        while len(rows) < len(self._kernels):
            if time.monotonic() > self._ends:
                left = self._kernels[len(rows) :]
                return rows + [KernelRow(one.op_type, "not run", _NO_TIME) for one in left]
            attempts += 1
            self._job["first"] = len(rows)
            status = self._folder / f"status{attempts}.jsonl"
            status.touch()
            self._job["status"] = str(status)
            ended = self._run(attempts)
            outcomes = _read(status)
            rows += [self._row(outcome) for outcome in outcomes if outcome["at"] == "done"]
            if len(rows) == len(self._kernels):
                break
            last = outcomes[-1] if outcomes else {}
            if not ended or (not outcomes and attempts > len(self._kernels)):
                raise InternalError(f"the check of kernels {ended or 'ended early'}")
            row = self._ended_at(len(rows), last, ended)
            if row is not None:
                rows.append(row)
        return rows

    def _ended_at(self, number: int, last: kernel_child.Outcome, ended: str) -> KernelRow | None:
        """Return the verdict on the kernel that ended the process; None to try it again."""
        op_type, kernel = self._kernels[number].op_type, self._job["kernels"][number]
        if last.get("kernel") != number:
            return KernelRow(op_type, "not run", f"its sessions cannot be opened: {ended}")
        if last["at"] == "kernel":
            return KernelRow(op_type, "failed", f"{last['what']}: the process {ended}")
        kernel["bad_cases"].append(last["case"])
        if len(kernel["bad_cases"]) > _MOST_BAD_CASES:
            return KernelRow(op_type, "not run", f"with its function body the process {ended}")
        return None

    def _row(self, outcome: kernel_child.Outcome) -> KernelRow:
        fields: dict[str, Any] = dict(outcome)
        number = fields.pop("kernel")
        del fields["at"]
        return KernelRow(self._kernels[number].op_type, **fields)

    def _run(self, attempt: int) -> str:
        """Run one process; return how it ended badly, empty if it did not."""
        job_file, log = self._folder / "job.json", self._folder / f"log{attempt}.txt"
        job_file.write_text(json.dumps(self._job), encoding="utf-8")
        seconds = max(1.0, self._ends - time.monotonic())
        return run_isolated(_CHILD, str(job_file), log=log, timeout_seconds=seconds)


def _read(status: Path) -> list[kernel_child.Outcome]:
    lines = status.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def _job(kernel: KernelNode, folder: Path) -> kernel_child.KernelJob:
    """Write what a process needs to check a kernel."""
    folder.mkdir()
    plain, in_place = folder / "plain.onnx", folder / "in_place.onnx"
    plain.write_bytes(plain_model(kernel).SerializeToString())
    in_place.write_bytes(in_place_model(kernel).SerializeToString())
    (folder / "function").write_bytes(kernel.function.SerializeToString())
    inputs: list[kernel_child.InputSpec] = []
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
    )
    return {
        "op": kernel.op_type,
        "function": str(folder / "function"),
        "plain": str(plain),
        "in_place": str(in_place),
        "inputs": inputs,
        "cases": [
            {"shapes": [list(shape) for shape in case.shapes], "is_required": case.is_required}
            for case in cases
        ],
        "roundings": roundings_of(kernel.op_type),
        "special_values": not special_values_differ(kernel.op_type),
        "bad_cases": [],
    }

"""The process that runs kernels beside their bodies, started by `kernel_check.py`.

A kernel that crashes ends this process and not the caller's: what is about to run is noted first.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TextIO, TypedDict

import numpy as np
import onnx

from ortkit.verify.kernel_inputs import (
    ORDINARY,
    SPECIAL,
    USUAL,
    Kind,
    least_integers,
    like_constant,
    made_up,
    numpy_type,
)
from ortkit.verify.kernel_judge import Found, judge_output
from ortkit.verify.kernel_library import CPU, Kernels, kernels_here
from ortkit.verify.kernel_reference import Reference
from ortkit.verify.kernel_runs import Operand, Runner, guarded, same_bytes

DOMAIN = "ortkit.fused"
#: The case that is tried with all kinds of values: neither the first nor a large one.
_SPECIAL_CASE = 1
#: Where that has more elements it is the first one.
_SPECIAL_ELEMENTS = 1 << 16


class InputSpec(TypedDict):
    """An input of a kernel."""

    type: int
    constant: str
    """File with its bytes if the model holds it, else empty."""
    shape: list[int]
    """Of a constant."""


class Case(TypedDict):
    """Sizes to try."""

    shapes: list[list[int]]
    """Of all inputs that are no constants."""
    is_required: bool


class KernelJob(TypedDict):
    """One kernel."""

    op: str
    function: str
    plain: str
    """File of a model of the one node."""
    in_place: str
    """The same with copies around it, so that its tensors are no inputs and outputs."""
    inputs: list[InputSpec]
    cases: list[Case]
    roundings: float
    special_values: bool
    """Whether it answers NaN and infinities as its body does."""
    bad_cases: list[int]
    """Cases whose body ended the process."""


class Job(TypedDict):
    """Kernels to check, one after the other."""

    library: str
    custom_ops: list[str]
    kernels: list[KernelJob]
    first: int
    status: str
    seconds: float
    """For all kernels; cases that are not required are left out beyond the kernel's part."""


class Outcome(TypedDict, total=False):
    """One line of the status file."""

    kernel: int
    at: str  # "body", "kernel" or "done"
    case: int
    what: str
    verdict: str
    reason: str
    needs_hardware: bool
    error: float
    body_error: float
    ratio: float
    cases: int
    runs: int
    skipped: int
    left_out: int
    seconds: float
    reference: str


class _NotRunError(Exception):
    """Why a kernel cannot be checked."""

    def __init__(self, reason: str, *, needs_hardware: bool = False) -> None:
        super().__init__(reason)
        self.needs_hardware = needs_hardware


class _WrongError(Exception):
    """What a kernel does wrong."""


def main(job_file: str) -> None:
    """Check the kernels of a job."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import onnxruntime

    with Path(job["status"]).open("a", encoding="utf-8") as status:
        for number in range(job["first"], len(job["kernels"])):
            check = _Check(onnxruntime, job, number, status)
            outcome = check.outcome()
            check.note(outcome)


@dataclass
class _Check:
    """The check of one kernel."""

    ort: ModuleType
    job: Job
    number: int
    status: TextIO
    runs: int = 0
    cases: int = 0
    skipped: int = 0
    left_out: int = 0
    worst: Found = field(default_factory=Found)
    why_skipped: str = ""
    where: str = ""
    reference: str = "float64"

    @property
    def kernel(self) -> KernelJob:
        return self.job["kernels"][self.number]

    def note(self, outcome: Outcome) -> None:
        outcome["kernel"] = self.number
        self.status.write(json.dumps(outcome) + "\n")
        self.status.flush()

    def outcome(self) -> Outcome:
        """Run all cases; return the verdict."""
        started = time.perf_counter()
        verdict, reason, needs_hardware = "passed", "", False
        try:
            self._all_cases()
        except _NotRunError as error:
            verdict, reason, needs_hardware = "not run", str(error), error.needs_hardware
        except _WrongError as error:
            verdict, reason = "failed", ": ".join(filter(None, [self.where, str(error)]))
        return {
            "at": "done",
            "verdict": verdict,
            "reason": reason,
            "needs_hardware": needs_hardware,
            "error": _finite(self.worst.error),
            "body_error": _finite(self.worst.body_error),
            "ratio": _finite(self.worst.ratio),
            "cases": self.cases,
            "runs": self.runs,
            "skipped": self.skipped,
            "left_out": self.left_out,
            "seconds": time.perf_counter() - started,
            "reference": self.reference,
        }

    def _all_cases(self) -> None:
        job, kernel = self.job, self.kernel
        here = kernels_here(self.ort, job["library"], [f"{DOMAIN}::{kernel['op']}"])
        for each in here.not_run:
            raise _NotRunError(each["reason"], needs_hardware=each["needs_hardware"])
        if list(here.providers) != [CPU]:
            reason = "kernels for CUDA are compared in the whole model"
            raise _NotRunError(reason, needs_hardware=True)
        function = onnx.FunctionProto.FromString(Path(kernel["function"]).read_bytes())
        self._run_cases(_Sessions(self.ort, job, kernel, here), function)
        if not self.cases:
            raise _NotRunError(f"its body runs at no size that was tried: {self.why_skipped}")

    def _run_cases(self, sessions: _Sessions, function: onnx.FunctionProto) -> None:
        kernel, started = self.kernel, time.perf_counter()
        part = self.job["seconds"] / len(self.job["kernels"])
        reference = Reference(function)
        least = least_integers(frozenset(node.op_type for node in function.node))
        constants = [_constants(spec, n) for n, spec in enumerate(kernel["inputs"])]
        special = min(_SPECIAL_CASE, len(kernel["cases"]) - 1)
        if special >= 0 and _elements(kernel["cases"][special]) > _SPECIAL_ELEMENTS:
            special = 0
        for number, case in enumerate(kernel["cases"]):
            if number in kernel["bad_cases"]:
                self.skipped += 1
                continue
            is_late = time.perf_counter() - started > part
            if is_late and not case["is_required"]:
                self.left_out += 1
                continue
            kinds: Sequence[Kind] = (USUAL[number % len(USUAL)],)
            if number == special:
                kinds = SPECIAL if kernel["special_values"] else ORDINARY
            for kind in kinds:
                inputs = self._inputs(case, kind, number, least, constants)
                self._try(sessions, reference, number, kind, inputs)

    def _inputs(
        self,
        case: Case,
        kind: Kind,
        number: int,
        least: int,
        constants: Sequence[tuple[Operand, Operand] | None],
    ) -> list[Operand]:
        shapes = iter(case["shapes"])
        made = []
        for spec, constant in zip(self.kernel["inputs"], constants, strict=True):
            if constant is not None:
                made.append(constant[kind == "other constants"])
                continue
            seed = number * 64 + len(made)
            dtype = numpy_type(spec["type"])
            made.append(Operand(made_up(dtype, tuple(next(shapes)), kind, seed, least)))
        return made

    def _try(
        self,
        sessions: _Sessions,
        reference: Reference,
        number: int,
        kind: Kind,
        operands: Sequence[Operand],
    ) -> None:
        """Run one case with one kind of values, in every way that a session may run it."""
        shapes = ", ".join(str(list(x.array.shape)) for x in operands if not x.is_constant)
        self.note({"at": "body", "case": number})
        try:
            body = sessions.body(operands)
        except Exception as error:  # noqa: BLE001  no such run: another size is tried
            self.skipped += 1
            self.why_skipped = _line(error)
            return
        exact = self._exact(reference, operands, body)
        judge = partial(self._judge, reference, operands, body, exact)
        first: list[np.ndarray] = []
        for way, run in sessions.ways(operands, body):
            self.where = f"inputs {shapes or 'constant'}, {kind} values, {way}"
            self.note({"at": "kernel", "case": number, "what": self.where})
            try:
                got = run()
            except Exception as error:
                raise _WrongError(_line(error)) from error
            self.runs += 1
            if not first or not all(map(same_bytes, first, got)):
                judge(got)
            first = first or got
        self.cases += 1

    def _exact(
        self, reference: Reference, operands: Sequence[Operand], body: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the body in float64, or in working precision if that cannot be had."""
        try:
            exact = reference([each.wide for each in operands])
        except Exception as error:  # noqa: BLE001  said in the report
            self.reference = f"working precision: {_line(error)}"
            return list(body)
        if [x.shape for x in exact] != [x.shape for x in body]:
            self.reference = "working precision: the reference has other shapes"
            return list(body)
        return exact

    def _judge(
        self,
        reference: Reference,
        operands: Sequence[Operand],
        body: Sequence[np.ndarray],
        exact: Sequence[np.ndarray],
        got: Sequence[np.ndarray],
    ) -> None:
        def moved(epsilons: float, seed: int) -> Sequence[np.ndarray] | None:
            try:
                return reference.moved([each.wide for each in operands], epsilons, seed)
            except Exception:  # noqa: BLE001  then nothing is near a threshold
                return None

        kernel = self.kernel
        for index, result in enumerate(got):
            found = judge_output(
                index,
                exact[index],
                body[index],
                result,
                roundings=kernel["roundings"],
                moved=moved,
            )
            if found.reason or found.ratio > self.worst.ratio:
                self.worst = found
            if found.reason:
                raise _WrongError(f"output {index} {found.reason}")


class _Sessions:
    """The sessions of one kernel and of its body."""

    def __init__(self, ort: ModuleType, job: Job, kernel: KernelJob, here: Kernels) -> None:
        open_plain = partial(Runner, ort, kernel["plain"], job["custom_ops"])
        try:
            self._body = open_plain(Kernels("", [CPU], []), threads=1)
        except Exception as error:
            raise _NotRunError(f"ONNX Runtime does not load its body: {_line(error)}") from error
        try:
            self._one = open_plain(here, threads=1)
            self._two = open_plain(here, threads=2)
            self._inside = Runner(ort, kernel["in_place"], job["custom_ops"], here, threads=1)
        except Exception as error:
            raise _WrongError(f"it cannot be loaded: {_line(error)}") from error
        self._is_cpu = list(here.providers) == [CPU]

    def body(self, operands: Sequence[Operand]) -> list[np.ndarray]:
        """Run the body in working precision."""
        return self._body.run([each.array for each in operands])

    def ways(
        self, operands: Sequence[Operand], body: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, partial[list[np.ndarray]]]]:
        """Yield the ways to run the kernel, and what they are called."""
        shapes = [(x.shape, x.dtype) for x in body]
        arrays = [each.array for each in operands]
        yield "1 thread", partial(guarded, self._one, operands, shapes, is_aligned=True)
        yield (
            "1 thread, unaligned tensors",
            partial(guarded, self._one, operands, shapes, is_aligned=False),
        )
        yield "2 threads", partial(guarded, self._two, operands, shapes, is_aligned=True)
        yield "1 thread, tensors of other nodes", partial(self._inside.run, arrays)


def _constants(spec: InputSpec, seed: int) -> tuple[Operand, Operand] | None:
    """Return a constant as the model has it, and another one; None for other inputs."""
    if not spec["constant"]:
        return None
    data = Path(spec["constant"]).read_bytes()
    known = np.frombuffer(data, numpy_type(spec["type"])).reshape(spec["shape"])
    other = like_constant(known, seed)
    return Operand(known, is_constant=True), Operand(other, is_constant=True)


def _elements(case: Case) -> int:
    return sum(prod(shape) for shape in case["shapes"])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def _finite(number: float) -> float:
    return number if np.isfinite(number) else -1.0

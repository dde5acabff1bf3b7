"""What `kernels/check.py` and the process that runs kernels tell each other, as JSON's types."""

from __future__ import annotations

from typing import TypedDict


class InputSpec(TypedDict):
    """An input of a kernel."""

    type: int
    constant: str
    """File with its bytes if the model holds it, else empty."""
    shape: list[int]
    """Shape of a constant."""


class Case(TypedDict):
    """Sizes to try."""

    shapes: list[list[int]]
    """Shapes of all inputs that are no constants."""
    is_required: bool


class KernelJob(TypedDict):
    """One kernel."""

    op: str
    function: str
    plain: str
    """File of a model of the one node."""
    in_place: str
    """The same with copies around it, so that its tensors are no inputs and outputs."""
    source: str
    """File of its source for Triton's interpreter; empty to run it by ONNX Runtime."""
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
    """Processor time for all kernels; beyond a kernel's part cases that are not required are left
    out."""
    most_seconds: float
    """Processor time after which a kernel is interrupted; 0 for none."""


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
    note: str


class NotRunError(Exception):
    """Why a kernel cannot be checked."""

    def __init__(self, reason: str, *, needs_hardware: bool = False) -> None:
        super().__init__(reason)
        self.needs_hardware = needs_hardware


class NotThisWayError(Exception):
    """Why a kernel is not run in one of its ways."""


class WrongError(Exception):
    """What a kernel does wrong."""


def one_line(error: Exception) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__

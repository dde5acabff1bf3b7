"""What `kernels/process.py` and the process that runs kernels tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from ortkit.verify.kernels.report import KernelRow


@dataclass(frozen=True)
class InputSpec:
    """An input of a kernel."""

    type: int
    constant: Path | None = None
    """File with its bytes if the model holds it."""
    shape: tuple[int, ...] = ()
    """Shape of a constant."""


@dataclass(frozen=True)
class CaseSizes:
    """Sizes to try."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of all inputs that are no constants."""
    is_required: bool


@dataclass(frozen=True)
class RowsJob:
    """The body of a kernel of fixed sizes for fewer rows, each of which is computed on its own."""

    function: Path
    plain: Path
    """A model of the one node."""
    batch: int
    """Rows of the kernel."""
    rows: int
    """Rows of this body."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of this body's inputs that are no constants."""
    inputs: tuple[int | None, ...]
    """By input, constants among them, the axis that rows are along; None where there is none."""
    outputs: tuple[int | None, ...]


@dataclass(frozen=True)
class KernelJob:
    """One kernel."""

    op: str
    function: Path
    plain: Path
    """A model of the one node."""
    in_place: Path
    """The same with copies around it, so that its tensors are no inputs and outputs."""
    source: Path | None
    """Its source for Triton's interpreter; None to run it by ONNX Runtime."""
    inputs: tuple[InputSpec, ...]
    cases: tuple[CaseSizes, ...]
    roundings: float
    special_values: bool
    """Whether it answers NaN and infinities as its body does."""
    bad_cases: tuple[int, ...] = ()
    """Cases whose body ended the process."""
    rows: RowsJob | None = None
    """What stands for its one case, if that is large."""

    @property
    def body(self) -> KernelJob:
        """What its body is run by: for fewer rows, if that is enough."""
        few = self.rows
        return self if few is None else replace(self, function=few.function, plain=few.plain)


@dataclass(frozen=True)
class KernelsJob:
    """Kernels to check, one after the other."""

    library: Path | None
    custom_ops: tuple[Path, ...]
    kernels: tuple[KernelJob, ...]
    first: int
    """Where to begin."""
    seconds: float
    """Processor time for all kernels; beyond a kernel's part cases that are not required are left
    out."""
    most_seconds: float
    """Processor time after which a kernel is interrupted; 0 for none."""


@dataclass(frozen=True)
class Step:
    """What is about to run, for when nothing follows."""

    kernel: int
    what: Literal["body", "kernel", "judging"]
    case: int
    where: str = ""


Tell: TypeAlias = Callable[[Step | KernelRow], None]


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

"""A Triton kernel run by its interpreter, with tensors between pages that nobody may touch.

In a process with TRITON_INTERPRET=1; see `interpreted.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.extend.check.guarded_child import Begun, CallFiles, Done, Guarded, Tell
from ortkit.kernels.triton.interpreter import Tensor, descriptor, module_of, repair


@dataclass(frozen=True)
class Argument:
    """What is passed.

    Args:
        kind: Of the parameter.
        type: Triton's.
        value: A tensor's place, or a size.
        map: Of a tensor map its sizes, strides in bytes, and the box.
    """

    kind: str
    type: str
    value: int
    map: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class InterpretedCall:
    """One call of a kernel."""

    files: CallFiles
    problem: str = ""
    """Why it cannot be called; empty if it can."""
    text: str = ""
    """Of its module."""
    entry: str = ""
    grid: tuple[int, ...] = ()
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class InterpretedJob:
    """Calls of a kernel with these tensors; `folder` is for modules."""

    folder: Path
    names: tuple[str, ...]
    calls: tuple[InterpretedCall, ...]


def interpret_with_guards(job: InterpretedJob, tell: Tell) -> None:
    """Do all calls of a job."""
    repair()
    known: dict[str, ModuleType] = {}
    with np.errstate(all="ignore"):
        for number, call in enumerate(job.calls):
            for at_end in (False, True):
                tell(Begun(number))
                problem = call.problem or _problem(job, call, known, at_end=at_end)
                tell(Done(number, problem))


def _problem(
    job: InterpretedJob, call: InterpretedCall, known: dict[str, ModuleType], *, at_end: bool
) -> str:
    """Return what is wrong with one call, empty if nothing is."""
    contents = [path.read_bytes() for path in call.files.inputs]
    tensors = [Guarded(content, len(content), at_end=at_end) for content in contents]
    outputs = [Guarded(None, size, at_end=at_end) for size in call.files.outputs]
    buffers = [*tensors, *outputs]
    arguments = [_value(argument, buffers, contents) for argument in call.arguments]
    if all(call.grid):
        function = getattr(module_of(call.text, job.folder, known), call.entry)
        try:
            function[call.grid](*arguments)
        except Exception as error:  # noqa: BLE001  the user's code, and the interpreter's own
            return " ".join(f"it raised {type(error).__name__}: {error}".split())
    for name, guarded in zip(job.names, buffers, strict=True):
        if problem := guarded.problem(name):
            return problem
    for path, guarded in zip(call.files.results, outputs, strict=True):
        path.write_bytes(guarded.bytes())
    return ""


def _value(argument: Argument, buffers: Sequence[Guarded], contents: Sequence[bytes]) -> Any:
    if argument.kind == "tensor":
        return Tensor(buffers[argument.value].address, argument.type)
    if argument.map is not None:
        return descriptor(Tensor(buffers[argument.value].address, argument.type), *argument.map)
    if argument.kind == "number":
        form = "<f" if argument.type == "fp32" else "<q"
        return struct.unpack(form, contents[argument.value])[0]
    return argument.value

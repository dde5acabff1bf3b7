"""Kernels in Triton, run by its interpreter on guarded memory, in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ortkit.extend.check.guarded import (
    MOST_ENDINGS,
    Outcome,
    read_outputs,
    run_child,
    write_inputs,
)
from ortkit.extend.check.op_cases import Case, flat_sizes
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form
from ortkit.extend.triton.kernels import launches_of
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.triton.parameters import Parameter
from ortkit.kernels.triton.source import StepSource
from ortkit.temporary import TemporaryFolder

#: Of larger grids the interpreter, which runs one program after the other, does nothing new.
MOST_PROGRAMS = 50
_MODULE = "ortkit.extend.check.interpreted_child"


def is_small(form: Form, case: Case) -> bool:
    """Say whether a case is worth the interpreter's time."""
    found = launches_of(form, flat_sizes(case.sizes))
    return found is None or prod(found[1]) <= MOST_PROGRAMS


def call_interpreted(form: Form, cases: Sequence[Case]) -> list[Outcome]:
    """Run a declared kernel on some cases, without a GPU; see `call_guarded`.

    Raises:
        UserError: The kernel does not fit the declaration.
    """
    with TemporaryFolder("ops") as folder:
        outcomes: list[Outcome] = []
        calls = [_call(form, case, folder, number) for number, case in enumerate(cases)]
        ended = 0
        while len(outcomes) < len(calls) and ended < MOST_ENDINGS:
            ended += 1
            tensors = (*form.signature.inputs, *form.signature.outputs)
            job = {
                "folder": str(folder),
                "names": [one.name for one in tensors],
                "calls": calls[len(outcomes) :],
            }
            for problem in run_child(_MODULE, job, {"TRITON_INTERPRET": "1"}):
                number = len(outcomes)
                outputs = () if problem else read_outputs(form, cases[number], calls[number])
                outcomes.append(Outcome(problem, outputs))
        return outcomes


def _call(form: Form, case: Case, folder: Path, number: int) -> dict[str, object]:
    sizes = flat_sizes(case.sizes)
    call = write_inputs(form, case, folder, number)
    found = launches_of(form, sizes)
    if found is None:
        return {**call, "text": "", "problem": "no variant takes these sizes"}
    source, grid = found
    step = source.steps[0]
    symbols = symbols_of((*form.signature.inputs, *form.signature.outputs))
    by_place = {f"s{place}": sizes[symbol] for place, symbol in enumerate(symbols)}
    outputs = call["outputs"]
    assert isinstance(outputs, list)
    return {
        **call,
        "problem": "",
        "text": step.text,
        "entry": step.entry,
        # As in a session, where nothing is to be written nothing is launched.
        "grid": grid if any(outputs) else (0, 0, 0),
        "arguments": [_argument(step, one, by_place) for one in step.parameters],
    }


def _argument(step: StepSource, parameter: Parameter, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Return what is passed: the kind, Triton's type, and a tensor's place or a size.

    Of a map the tensor's type, and also its sizes, strides in bytes, and the box.
    """
    argument = parameter.argument
    if argument.kind == "map":
        one = step.maps[argument.index]
        dims, strides = (
            [value_of(size, sizes) for size in each] for each in (one.dims, one.strides)
        )
        type_ = parameter.type.removeprefix("tensordesc<").partition("[")[0]
        return "map", f"*{type_}", one.tensor, dims, strides, parameter.box
    if argument.extent is None:
        return argument.kind, parameter.type, argument.index
    return argument.kind, parameter.type, value_of(argument.extent, sizes)

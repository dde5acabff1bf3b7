"""Kernels in Triton, run by its interpreter on guarded memory, in a child process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ortkit.extend.check.guarded import SECONDS, Outcome, outcomes_of, write_inputs
from ortkit.extend.check.guarded_child import Begun, Done
from ortkit.extend.check.interpreted_child import (
    Argument,
    InterpretedCall,
    InterpretedJob,
    interpret_with_guards,
)
from ortkit.extend.check.op_cases import Case, flat_sizes
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form
from ortkit.extend.triton.kernels import launches_of
from ortkit.isolation.ended import Ended
from ortkit.isolation.run import stream_isolated
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.triton.parameters import Parameter
from ortkit.kernels.triton.source import StepSource
from ortkit.temporary import TemporaryFolder

#: Of larger grids the interpreter, which runs one program after the other, does nothing new.
MOST_PROGRAMS = 50


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
        calls = tuple(_call(form, case, folder, number) for number, case in enumerate(cases))
        tensors = (*form.signature.inputs, *form.signature.outputs)
        job = InterpretedJob(folder, tuple(tensor.name for tensor in tensors), calls)

        def run(left: int) -> Iterator[Begun | Done | Ended]:
            part = replace(job, calls=calls[left:])
            return stream_isolated(
                interpret_with_guards, part, timeout_seconds=SECONDS,
                environment={"TRITON_INTERPRET": "1"},
            )  # fmt: skip

        return outcomes_of(form, cases, [call.files for call in calls], run)


def _call(form: Form, case: Case, folder: Path, number: int) -> InterpretedCall:
    sizes = flat_sizes(case.sizes)
    files = write_inputs(form, case, folder, number)
    found = launches_of(form, sizes)
    if found is None:
        return InterpretedCall(files, "no variant takes these sizes")
    source, grid = found
    step = source.steps[0]
    symbols = symbols_of((*form.signature.inputs, *form.signature.outputs))
    by_symbol = {f"s{index}": sizes[symbol] for index, symbol in enumerate(symbols)}
    return InterpretedCall(
        files,
        text=step.text,
        entry=step.entry,
        # As in a session, where nothing is to be written nothing is launched.
        grid=tuple(grid) if any(files.outputs) else (0, 0, 0),
        arguments=tuple(_argument(step, parameter, by_symbol) for parameter in step.parameters),
    )


def _argument(step: StepSource, parameter: Parameter, sizes: Mapping[str, int]) -> Argument:
    argument = parameter.argument
    if argument.kind == "map":
        map_ = step.maps[argument.index]
        dims, strides = (
            tuple(value_of(size, sizes) for size in each) for each in (map_.dims, map_.strides)
        )
        type_ = parameter.type.removeprefix("tensordesc<").partition("[")[0]
        return Argument("map", f"*{type_}", map_.tensor, (dims, strides, tuple(parameter.box)))
    value = argument.index if argument.extent is None else value_of(argument.extent, sizes)
    return Argument(argument.kind, parameter.type, value)

"""Kernels called with every tensor between pages that nobody may touch, in a child process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from ortkit.errors import KernelError
from ortkit.extend.check.guarded_child import (
    Begun,
    CallFiles,
    Done,
    GuardedCall,
    GuardedJob,
    call_with_guards,
)
from ortkit.extend.check.op_cases import Array, Case, flat_sizes, numpy_dtype
from ortkit.extend.declare.prepack import workspace_of
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form
from ortkit.isolation.ended import Crashed, Ended, TimedOut
from ortkit.isolation.run import stream_isolated
from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import extent_of, symbols_of
from ortkit.temporary import TemporaryFolder, tools_in

SECONDS = 120.0
#: A kernel that ended this many processes is not called again.
MOST_ENDINGS = 3


@dataclass(frozen=True)
class Outcome:
    """What a kernel did in one case."""

    problem: str
    """Empty if it kept within its memory and came to an end."""
    outputs: tuple[Array, ...]


def call_guarded(form: Form, kernel: Kernel, cases: Sequence[Case]) -> list[Outcome]:
    """Call a kernel on some cases; on fewer if it ends the process again and again.

    Raises:
        KernelError: The C compiler cannot link the kernel.
    """
    with TemporaryFolder("ops") as folder:
        library = folder / "kernel.so"
        objects = {part.symbol: str(part.artifact) for part in kernel.parts}
        command = [*find_linker(), "-shared", "-o", str(library), *objects.values(), "-lm"]
        linked = subprocess.run(
            command, capture_output=True, text=True, check=False, env=tools_in(folder)
        )
        if linked.returncode != 0:
            raise KernelError(f"{command[0]} failed: {linked.stderr.strip()[-300:]}")
        calls = [_call(form, kernel, case, folder, number) for number, case in enumerate(cases)]
        tensors = (*form.signature.inputs, *form.signature.outputs)
        job = GuardedJob(
            library,
            kernel.symbol,
            kernel.target.level,
            tuple(tensor.name for tensor in tensors),
            tuple(calls),
            tuple(kernel.launch.inplace),
            tuple((pack.input, pack.kernel.symbol) for pack in kernel.packs),
        )

        def run(left: int) -> Iterator[Begun | Done | Ended]:
            part = replace(job, calls=job.calls[left:])
            return stream_isolated(call_with_guards, part, timeout_seconds=SECONDS)

        return outcomes_of(form, cases, [call.files for call in calls], run)


def outcomes_of(
    form: Form,
    cases: Sequence[Case],
    files: Sequence[CallFiles],
    run: Callable[[int], Iterator[Begun | Done | Ended]],
) -> list[Outcome]:
    """Return what a kernel did in its cases, on fewer if it ends the process again and again.

    Args:
        form: Of the kernel.
        cases: To call it on.
        files: Of each case.
        run: Runs a process for the cases from a number on.
    """
    outcomes: list[Outcome] = []
    ended = 0
    while len(outcomes) < len(cases) and ended < MOST_ENDINGS:
        ended += 1
        before = len(outcomes)
        for problem in _problems(run(before)):
            number = len(outcomes)
            outputs = () if problem else _read_outputs(form, cases[number], files[number])
            outcomes.append(Outcome(problem, outputs))
        assert len(outcomes) > before
    return outcomes


def _problems(events: Iterable[Begun | Done | Ended]) -> list[str]:
    """Return what was wrong with each call, up to one that ended the process."""
    found: dict[int, str] = {}
    begun = 0
    for each in events:
        if isinstance(each, Begun):
            begun = each.number
        elif isinstance(each, Done):
            found[each.number] = found.get(each.number) or each.problem
        else:
            found[begun] = _ending(each)
    return [found[number] for number in sorted(found)]


def _ending(ended: Ended) -> str:
    if isinstance(ended, TimedOut):
        return f"it does not come to an end within {ended.seconds:.0f} s"
    if isinstance(ended, Crashed) and ended.signal in (signal.SIGSEGV, signal.SIGBUS):
        return "it reads or writes out of bounds"
    return f"its process {ended}"


def write_inputs(form: Form, case: Case, folder: Path, number: int) -> CallFiles:
    """Write the inputs of a call into files."""
    sizes = flat_sizes(case.sizes)
    arrays = [item for item in case.inputs if item is not None]
    for name in form.attributes:
        dtype = np.float32 if form.op.schema.attributes[name].kind is float else np.int64
        arrays.append(np.asarray(case.attributes[name], dtype))
    paths = []
    for index, array in enumerate(arrays):
        path = folder / f"{number}_{index}.in"
        path.write_bytes(np.ascontiguousarray(array).tobytes())
        paths.append(path)
    outputs = []
    for spec in form.signature.outputs:
        extents = [extent_of(dim) for dim in spec.shape]
        elements = prod(value_of(extent, sizes) for extent in extents)
        outputs.append(elements * numpy_dtype(spec.dtype).itemsize)
    results = tuple(folder / f"{number}_{index}.out" for index in range(len(outputs)))
    return CallFiles(tuple(paths), tuple(outputs), results)


def _call(form: Form, kernel: Kernel, case: Case, folder: Path, number: int) -> GuardedCall:
    sizes = flat_sizes(case.sizes)
    files = write_inputs(form, case, folder, number)
    symbols = symbols_of((*form.signature.inputs, *form.signature.outputs))
    by_symbol = {f"s{index}": sizes[symbol] for index, symbol in enumerate(symbols)}
    units = prod(value_of(extent, by_symbol) for extent in kernel.launch.units)
    return GuardedCall(
        files,
        tuple(sizes[symbol] for symbol in symbols),
        # As in a session, where nothing is to be written no kernel is called.
        units if any(files.outputs) else 0,
        tuple(workspace_of(pack, sizes) for pack in kernel.packs),
    )


def _read_outputs(form: Form, case: Case, files: CallFiles) -> tuple[Array, ...]:
    """Return what a call wrote."""
    found = []
    for path, (_, kind) in zip(files.results, form.op.schema.outputs.items(), strict=True):
        shape = case.sizes.shape(kind)
        assert shape is not None
        found.append(
            np.frombuffer(path.read_bytes(), numpy_dtype(case.types[kind.kind])).reshape(shape)
        )
    return tuple(found)

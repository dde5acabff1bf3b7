"""Kernels called with every tensor between pages that nobody may touch, in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np

from ortkit.errors import KernelError
from ortkit.extend.check.op_cases import Array, Case, flat_sizes, numpy_dtype
from ortkit.extend.declare.prepack import room_of
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form
from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import extent_of, symbols_of
from ortkit.runtime.child_process import child_command
from ortkit.temporary import TemporaryFolder, tools_in

_SECONDS = 120.0
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
        outcomes: list[Outcome] = []
        ended = 0
        while len(outcomes) < len(calls) and ended < MOST_ENDINGS:
            ended += 1
            job = {
                "library": str(library), "symbol": kernel.symbol, "level": kernel.target.level,
                "names": [one.name for one in tensors], "calls": calls[len(outcomes) :],
                "inplace": kernel.launch.inplace,
                "packs": [(one.input, one.kernel.symbol) for one in kernel.packs],
            }  # fmt: skip
            before = len(outcomes)
            for problem in run_child("ortkit.extend.check.guarded_child", job):
                number = len(outcomes)
                outputs = () if problem else read_outputs(form, cases[number], calls[number])
                outcomes.append(Outcome(problem, outputs))
            assert len(outcomes) > before
        return outcomes


def run_child(
    module: str, job: Mapping[str, object], surroundings: Mapping[str, str] | None = None
) -> list[str]:
    """Return what was wrong with each call of a job, up to one that ended the process.

    Args:
        module: What runs it, such as `ortkit.extend.check.guarded_child`.
        job: As that module says.
        surroundings: Additional environment variables.
    """
    command = child_command(module)
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=_SECONDS,
            check=False, env={**os.environ, **(surroundings or {})},
        )  # fmt: skip
        lines, code = done.stdout.splitlines(), done.returncode
    except subprocess.TimeoutExpired as error:
        # What came until then is bytes, whatever was asked for.
        lines, code = (error.stdout or b"").decode().splitlines(), None
    found: dict[int, str] = {}
    begun = -1
    for line in lines:
        word, number, *rest = line.split(" ", 2)
        if word == "begin":
            begun = int(number)
        else:
            found[int(number)] = found.get(int(number), "") or "".join(rest)
    if code == 0:
        return [found[number] for number in sorted(found)]
    if begun < 0 and code is not None:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        return [f"its process ended with {code}: {' '.join(last)}"]
    found[max(begun, 0)] = _ending(code)
    return [found[number] for number in range(max(begun, 0) + 1)]


def _ending(code: int | None) -> str:
    if code is None:
        return f"it does not come to an end within {_SECONDS:.0f} s"
    if code in (-signal.SIGSEGV, -signal.SIGBUS):
        return "it reads or writes out of bounds"
    return f"its process ended with {code}"


def write_inputs(form: Form, case: Case, folder: Path, number: int) -> dict[str, object]:
    """Write the inputs of a call into files; returns what a child is told of its tensors."""
    sizes = flat_sizes(case.sizes)
    arrays = [one for one in case.inputs if one is not None]
    for name in form.attributes:
        dtype = np.float32 if form.op.schema.attributes[name].kind is float else np.int64
        arrays.append(np.asarray(case.attributes[name], dtype))
    paths = []
    for index, array in enumerate(arrays):
        path = folder / f"{number}_{index}.in"
        path.write_bytes(np.ascontiguousarray(array).tobytes())
        paths.append(str(path))
    outputs = []
    for one in form.signature.outputs:
        extents = [extent_of(dim) for dim in one.shape]
        elements = prod(value_of(extent, sizes) for extent in extents)
        outputs.append(elements * numpy_dtype(one.dtype).itemsize)
    results = [str(folder / f"{number}_{index}.out") for index in range(len(outputs))]
    return {"inputs": paths, "outputs": outputs, "results": results}


def _call(form: Form, kernel: Kernel, case: Case, folder: Path, number: int) -> dict[str, object]:
    sizes = flat_sizes(case.sizes)
    call = write_inputs(form, case, folder, number)
    symbols = symbols_of((*form.signature.inputs, *form.signature.outputs))
    by_place = {f"s{place}": sizes[symbol] for place, symbol in enumerate(symbols)}
    units = prod(value_of(extent, by_place) for extent in kernel.launch.units)
    outputs = call["outputs"]
    assert isinstance(outputs, list)
    return {
        **call,
        "sizes": [sizes[symbol] for symbol in symbols],
        # As in a session, where nothing is to be written no kernel is called.
        "units": units if any(outputs) else 0,
        "packs": [asdict(room_of(one, sizes)) for one in kernel.packs],
    }


def read_outputs(form: Form, case: Case, call: Mapping[str, object]) -> tuple[Array, ...]:
    """Return what a call wrote."""
    paths = call["results"]
    assert isinstance(paths, list)
    found = []
    for path, (_, kind) in zip(paths, form.op.schema.outputs.items(), strict=True):
        shape = case.sizes.shape(kind)
        assert shape is not None
        content = Path(path).read_bytes()
        found.append(np.frombuffer(content, numpy_dtype(case.types[kind.kind])).reshape(shape))
    return tuple(found)

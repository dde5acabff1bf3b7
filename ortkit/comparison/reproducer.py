"""One step of two models, as models of their own with the step's inputs."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.comparison.cuts import Given, element_type
from ortkit.comparison.node_result import Reproducer
from ortkit.comparison.node_runs import Runner, Values
from ortkit.comparison.sides import Prepared
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.kernels.metadata import library_path
from ortkit.verify.inputs.feeds import Value

ORIGINAL, CANDIDATE, INPUTS = "repro.onnx", "repro.candidate.onnx", "repro.npz"


@dataclass(frozen=True)
class Step:
    """A value, what it is made from, and what A makes of that."""

    value: str
    known: Values
    expected: Value


def write(
    folder: Path, runner: Runner, before: Prepared, after: Prepared, step: Step
) -> Reproducer:
    """Write the step as it stands in A and as it stands in B, and its inputs.

    Both models have the same inputs, also those that only one of them reads.

    Raises:
        UserError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror or error}", where=str(folder)) from error
    stops = set(step.known)
    own = [
        name
        for side in (before, after)
        for name in side.cutter.given_to([step.value], stops)
        if name not in stops
    ]
    values = {**step.known, **{name: runner.feeds[name] for name in dict.fromkeys(own)}}
    paths = [folder / name for name in (ORIGINAL, CANDIDATE, INPUTS)]
    for side, path in zip((before, after), paths, strict=False):
        _save(side, step, values, path)
    arrays: dict[str, Any] = {name: _stored(value) for name, value in values.items()}
    np.savez(paths[2], **arrays)
    library = after.side.library
    if library is not None:
        library = Path(shutil.copyfile(library, library_path(paths[1])))
    command = ["ortkit", "verify", str(paths[0]), str(paths[1]), "--inputs", str(paths[2])]
    if library is not None:
        command += ["--library", str(library)]
    return Reproducer(paths[0], paths[1], paths[2], library, shlex.join(command))


def _save(side: Prepared, step: Step, values: Values, path: Path) -> None:
    given = [
        Given(name, element_type(value), value.shape)
        for name, value in values.items()
        if isinstance(value, np.ndarray)
    ]
    part = side.cutter.step([step.value], given)
    save_model(open_model(part, folder=side.path.parent), path, external_data=False)


def _stored(value: Value) -> np.ndarray:
    """Return an array of a type that numpy's file format has; see `load_feeds`."""
    if not isinstance(value, np.ndarray):
        raise UserError("only tensors can be kept as inputs of a step")
    if value.dtype.kind == "V" or value.dtype.name not in np.sctypeDict:
        dtype = ir.DataType.from_numpy(value.dtype)
        if dtype.bitwidth >= 8:
            return np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
        return value.astype(np.int8 if dtype.is_signed() else np.uint8)
    return value

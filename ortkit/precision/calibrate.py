"""Calibration: the user's input sets, and the ranges that values take on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.isolation.ended import Ended, TimedOut
from ortkit.isolation.run import run_isolated
from ortkit.precision.calibrate_child import CalibrationJob, calibrated_ranges
from ortkit.precision.static import Range
from ortkit.runtime.ort import require_onnxruntime
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.given import checked_feeds, load_arrays
from ortkit.verify.inputs.sizes import free_inputs

Method = Literal["auto", "minmax", "entropy", "percentile"]
#: What `auto` starts from; the first gives whole ranges. See `ranges.py`.
TRIED = ("minmax", "percentile")

_FIX = "give samples as the model would get them"
_SECONDS = 1800.0


def read_sets(path: Path, model: ir.Model) -> list[Feeds]:
    """Read calibration data: an npz file, or a folder of them, one or several samples each.

    Arrays are named like the model's inputs; those named like its outputs are left out. Where the
    model has a fixed batch, a file may hold several: they are taken apart along the first axis.

    Raises:
        UserError: There is none, or it does not fit the model, or holds what is no number.
    """
    if not path.exists():
        raise UserError("no such file or folder", where=str(path), fix="see --calibrate")
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise UserError("the folder holds no .npz file", where=str(path), fix=_FIX)
    return [each for file in files for each in _read(file, model)]


def _read(file: Path, model: ir.Model) -> list[Feeds]:
    outputs = {value.name for value in model.graph.outputs}
    arrays = {name: each for name, each in load_arrays(file).items() if name not in outputs}
    if not arrays:
        raise UserError("it holds no inputs", where=str(file), fix=_FIX)
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(f"input {name!r} holds NaN or infinity", where=str(file), fix=_FIX)
        if array.size == 0:
            raise UserError(f"input {name!r} is empty", where=str(file), fix=_FIX)
    return [checked_feeds(each, model, str(file)) for each in _by_sample(arrays, model)]


def _by_sample(
    arrays: Mapping[str, np.ndarray], model: ir.Model
) -> list[Mapping[str, np.ndarray]]:
    """Take samples apart where every input has a fixed batch and holds several of them."""
    counts = set()
    for value in free_inputs(model):
        array = arrays.get(value.name or "")
        batch = None if value.shape is None or not len(value.shape) else value.shape[0]
        if array is None or array.ndim == 0 or not isinstance(batch, int) or batch < 1:
            return [arrays]
        if array.shape[0] % batch or array.ndim != len(value.shape or ()):
            return [arrays]
        counts.add(array.shape[0] // batch)
    if len(counts) != 1 or counts == {1}:
        return [arrays]
    (count,) = counts
    return [
        {name: np.split(array, count)[i] for name, array in arrays.items()} for i in range(count)
    ]


def find_ranges(
    model: Path,
    sets: Sequence[Path],
    methods: Sequence[str],
    operators: Sequence[str],
    folder: Path,
) -> dict[str, dict[str, Range]]:
    """Return the range of each value around some operators, by method and name.

    ONNX Runtime's calibration does it, in a child process.

    Args:
        model: A float32 model.
        sets: Folders of input sets, as `verify.exchange` writes them.
        methods: Of `Method`, but for `auto`.
        operators: Types whose inputs and outputs are looked at.
        folder: For files; made here.

    Raises:
        UserError: The calibration failed.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    require_onnxruntime()
    folder.mkdir(parents=True)
    job = CalibrationJob(model, tuple(sets), tuple(methods), tuple(operators), folder)
    found = run_isolated(calibrated_ranges, job, timeout_seconds=_SECONDS)
    if isinstance(found, Ended):
        fix = "give fewer samples" if isinstance(found, TimedOut) else _FIX
        raise UserError(f"calibration failed: the process {found}", where="--calibrate", fix=fix)
    return {
        method: {
            name: (low, high)
            for name, (low, high) in ranges.items()
            if math.isfinite(low) and math.isfinite(high)
        }
        for method, ranges in found.items()
    }

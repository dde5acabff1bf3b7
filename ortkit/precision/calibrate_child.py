"""ONNX Runtime's calibration, in a process of its own; see `calibrate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortkit.runtime.ort import preload_onnxruntime
from ortkit.runtime.tensor_files import plain_value, read_manifest

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime


@dataclass(frozen=True)
class CalibrationJob:
    """A model, folders of input sets, and how to find ranges; `folder` is for models."""

    model: Path
    feeds: tuple[Path, ...]
    methods: tuple[str, ...]
    operators: tuple[str, ...]
    folder: Path


def calibrated_ranges(job: CalibrationJob) -> dict[str, dict[str, tuple[float, float]]]:
    """Return for each method the range of each value by name."""
    return {method: _ranges(job, method) for method in job.methods}


def _ranges(job: CalibrationJob, method: str) -> dict[str, tuple[float, float]]:
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    calibrator = create_calibrator(
        job.model, list(job.operators),
        augmented_model_path=str(job.folder / f"{method}.onnx"),
        calibrate_method=methods[method], extra_options={"symmetric": False},
    )  # fmt: skip
    for folder in job.feeds:
        # One at a time: the values of all sets at once may not fit into memory.
        calibrator.collect_data(_Reader(folder))
    return {
        name: (float(data.range_value[0].min()), float(data.range_value[1].max()))
        for name, data in calibrator.compute_data().items()
    }


class _Reader:
    """Gives one input set; what ONNX Runtime calls a CalibrationDataReader."""

    def __init__(self, folder: Path) -> None:
        entries = read_manifest(folder)
        self._sets = [{entry["name"]: plain_value(folder, entry) for entry in entries}]

    def get_next(self) -> dict[str, Any] | None:
        """Return an input set, None when there is no other."""
        return self._sets.pop() if self._sets else None

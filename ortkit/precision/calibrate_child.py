"""The process that runs ONNX Runtime's calibration, started by `calibrate.py`."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any, TypedDict

from ortkit.runtime.tensor_files import plain_value, read_manifest


class Job(TypedDict):
    """A model, input sets, and how to find ranges."""

    model: str
    feeds: list[str]
    methods: list[str]
    operators: list[str]
    results: str
    """Where to write, for each method, the range of each value by name."""


def main(job_file: str) -> None:
    """Run a job."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    found = {method: _ranges(job, method) for method in job["methods"]}
    Path(job["results"]).write_text(json.dumps(found), encoding="utf-8")


def _ranges(job: Job, method: str) -> dict[str, list[float]]:
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    calibrator = create_calibrator(
        Path(job["model"]), job["operators"],
        augmented_model_path=str(Path(job["results"]).with_name(f"{method}.onnx")),
        calibrate_method=methods[method], extra_options={"symmetric": False},
    )  # fmt: skip
    for folder in job["feeds"]:
        # One at a time: the values of all sets at once may not fit into memory.
        calibrator.collect_data(_Reader(Path(folder)))
    return {
        name: [float(data.range_value[0].min()), float(data.range_value[1].max())]
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

"""The process in which ONNX Runtime optimizes a model and writes what it made of it."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import TypedDict

#: ONNX Runtime's names of its levels.
LEVELS = {"off": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC",
          "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}  # fmt: skip


class OptimizeJob(TypedDict):
    """What to optimize, and how."""

    model: str
    made: str
    level: str
    providers: list[str]
    libraries: list[str]


def main(job_file: str) -> None:
    """Load the model and let ONNX Runtime write it; ends with a line and status 1 if it fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job: OptimizeJob = json.loads(Path(job_file).read_text(encoding="utf-8"))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[job["level"]])
    options.graph_optimization_level = level
    options.optimized_model_filepath = job["made"]
    for key, value in (
        (
            "session.optimized_model_external_initializers_file_name",
            Path(job["made"]).name + ".data",
        ),
        ("session.optimized_model_external_initializers_min_size_in_bytes", "1024"),
    ):
        options.add_session_config_entry(key, value)
    target = "cuda" if "CUDAExecutionProvider" in job["providers"] else "cpu"
    options.add_session_config_entry("ortkit.fused.target", target)
    for library in job["libraries"]:
        options.register_custom_ops_library(library)
    try:
        onnxruntime.InferenceSession(job["model"], options, providers=job["providers"])
    except Exception as error:  # noqa: BLE001  whatever stops it is the answer
        sys.exit(" ".join(str(error).split()) or type(error).__name__)

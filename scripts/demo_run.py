"""Run a model, its optimized form, and that with its kernel library; show that they agree.

usage: demo_run.py MODEL.onnx MODEL.opt.onnx
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ortkit.graph.io.open import open_model
from ortkit.kernels.metadata import library_path
from ortkit.runtime.ort import import_onnxruntime
from ortkit.verify.inputs.feeds import make_feeds

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ROUNDS = 50


def main(original: Path, optimized: Path) -> None:
    """Print one line for each way to run the model."""
    made = make_feeds(open_model(original), 1)[0]
    feeds = {name: np.asarray(value) for name, value in made.items()}
    sessions = {"original": open_session(original), "optimized": open_session(optimized)}
    library = library_path(optimized)
    if library.exists():
        sessions["optimized, with its library"] = open_session(optimized, library)
    results = {label: session.run(None, feeds) for label, session in sessions.items()}
    elapsed: dict[str, list[float]] = {label: [] for label in sessions}
    for _ in range(ROUNDS):  # interleaved, so that all meet the same disturbances
        for label, session in sessions.items():
            started = time.perf_counter()
            session.run(None, feeds)
            elapsed[label].append(time.perf_counter() - started)
    for label, got in results.items():
        pairs = zip(got, results["original"], strict=True)
        error = max(float(np.abs(a - b).max()) for a, b in pairs)
        milliseconds = np.median(elapsed[label]) * 1e3
        print(f"  {label:<28} {milliseconds:8.3f} ms   largest difference {error:.1e}")


def open_session(path: Path, library: Path | None = None) -> InferenceSession:
    """Open a model at the runtime's own settings, with the kernels of `library` if it is given."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library.absolute()))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return cast("InferenceSession", session)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

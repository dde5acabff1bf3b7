"""Run a model, its optimized form, and that with its kernel library; show that they agree.

usage: demo_run.py MODEL.onnx MODEL.opt.onnx
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

from ortkit.graph.open import open_model
from ortkit.optimization import library_path
from ortkit.verify.feeds import make_feeds


def main(original: Path, optimized: Path) -> None:
    """Print one line for each way to run the model."""
    made = make_feeds(open_model(original), 1)[0]
    feeds = {name: np.asarray(value) for name, value in made.items()}
    library = library_path(optimized)
    ways: list[tuple[str, Path, Path | None]] = [
        ("original", original, None),
        ("optimized", optimized, None),
    ]
    if library.exists():
        ways.append(("optimized, with its library", optimized, library))
    expected: list[np.ndarray] = []
    for label, path, kernels in ways:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if kernels is not None:
            options.register_custom_ops_library(str(kernels))
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        results = session.run(None, feeds)
        expected = expected or results
        taken = []
        for _ in range(30):
            started = time.perf_counter()
            session.run(None, feeds)
            taken.append(time.perf_counter() - started)
        error = max(float(np.abs(a - b).max()) for a, b in zip(results, expected, strict=True))
        print(f"  {label:<28} {np.median(taken) * 1e3:8.3f} ms   largest difference {error:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

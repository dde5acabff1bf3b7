"""Runs a model with its library in every way that reaches another branch of the shim.

usage: sanitized_model.py MODEL KERNELS FEEDS
Run by test_sanitizers.py with a sanitizer preloaded.
Exits 1 where results differ between runs, and the sanitizer says what it found on standard error.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(model: str, library: str, feeds_path: str) -> None:
    """Make sessions, run them in threads, with inputs that fit and with inputs that do not."""
    with np.load(feeds_path) as stored:
        feeds = {name: stored[name] for name in stored.files}
    wanted = run(model, None, feeds, 1)
    for threads in (1, 3):
        found = run(model, library, feeds, threads)
        for one, other in zip(found, wanted, strict=True):
            check(np.allclose(one, other, rtol=0, atol=1e-4), "values")
    empty = {name: value[:0] if value.ndim == 2 else value for name, value in feeds.items()}
    check(run(model, library, empty, 2)[0].size == 0, "nothing to compute")
    workers = [threading.Thread(target=run, args=(model, library, feeds, 2)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wrong = {name: value[..., :-1] for name, value in feeds.items()}
    try:
        run(model, library, wrong, 2)
    except Exception as error:  # noqa: BLE001
        check("ortkit.fused::" in str(error), f"another error: {error}")
    else:
        check(False, "inputs that do not fit were taken")


def run(
    model: str, library: str | None, feeds: dict[str, np.ndarray], threads: int
) -> list[np.ndarray]:
    """Run the model in a session of its own."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(library)
    content = Path(model).read_bytes()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def check(holds: bool, what: str) -> None:
    """Exit with a reason unless `holds`."""
    if not holds:
        sys.exit(f"wrong: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.write("ran to its end\n")

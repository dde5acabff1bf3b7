"""The process that times variants of a small model: `python kernels_child.py JOB.json`.

Imports nothing of ortkit. All sessions read and write the same buffers, so that no variant has
better ones; runs alternate A B ... B A, and prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

#: Runs of a variant at a time: the first warms its code and data, the others are timed.
_TURN = 4


class Job(TypedDict):
    """What to time."""

    models: dict[str, str]
    """By variant; all have the same inputs and outputs, but for the order of their axes."""
    libraries: dict[str, str]
    feeds: str
    threads: int
    seconds: float


def main(job: Job) -> dict[str, list[float]]:
    """Return the seconds of single runs by variant; "empty" and "memcpy" among them."""
    with np.load(job["feeds"]) as file:
        feeds = {name: np.ascontiguousarray(file[name]) for name in file.files}
    runs: dict[str, Callable[[], object]] = {}
    outputs: dict[str, np.ndarray] = {}
    for name, model in job["models"].items():
        session = _session(model, job["libraries"].get(name), job["threads"])
        if not outputs:
            found = session.run(None, feeds)
            names = [value.name for value in session.get_outputs()]
            outputs = dict(zip(names, map(np.ascontiguousarray, found), strict=True))
        runs[name] = _bound(session, feeds, outputs)
    runs["memcpy"] = _copy([*feeds.values(), *outputs.values()])
    return _rounds(runs, job["seconds"])


def _session(model: str, library: str | None, threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if library:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _bound(
    session: Any, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> Callable[[], object]:
    binding = session.io_binding()
    for value in session.get_inputs():
        binding.bind_cpu_input(value.name, feeds[value.name].reshape(value.shape))
    for value, array in zip(session.get_outputs(), outputs.values(), strict=True):
        binding.bind_output(value.name, "cpu", 0, array.dtype, value.shape, array.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def _copy(arrays: list[np.ndarray]) -> Callable[[], object]:
    """Return a copy that reads and writes as many bytes as all arrays have."""
    source = np.ones(sum(array.nbytes for array in arrays) // 2, np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def _rounds(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    elapsed: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(5):
            run()
    until = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < until or turn < 4:
        order = list(runs) if turn % 2 == 0 else list(reversed(runs))
        for name in order:
            run = runs[name]
            run()
            for _ in range(_TURN - 1):
                started = time.perf_counter()
                run()
                elapsed[name].append(time.perf_counter() - started)
        turn += 1
    return elapsed


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))

"""A process that holds one model of one engine and runs it when told: `cpu_worker.py JOB.json`.

Imports numpy and the engine only, so that it runs in the engine's own environment. One JSON
object a line on stdin and on stdout. {"runs": N} answers with the seconds of N runs, {"save":
PATH} writes the outputs of a run, an end of input ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np


class Job(TypedDict):
    """What to hold."""

    engine: str
    model: str
    libraries: list[str]
    feeds: str
    threads: int
    clock: str
    """`wall`, or `processor`: the time of all threads, which other processes disturb less."""


Run = Callable[[], "dict[str, np.ndarray]"]


def main(job: Job) -> None:
    """Serve until the input ends."""
    with np.load(job["feeds"]) as file:
        feeds = {name: np.ascontiguousarray(file[name]) for name in file.files}
    engines = {
        "onnxruntime": _onnxruntime, "openvino": _openvino, "openvino bf16": _openvino,
    }  # fmt: skip
    run = engines[job["engine"]](job, feeds)
    run()
    clock = time.process_time if job["clock"] == "processor" else time.perf_counter
    _say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "save" in asked:
            # Copied: an engine may give its own memory.
            np.savez(asked["save"], **{name: np.array(value) for name, value in run().items()})
            _say({"saved": True})
            continue
        elapsed = []
        for _ in range(asked["runs"]):
            started = clock()
            run()
            elapsed.append(clock() - started)
        _say({"seconds": elapsed})


def _onnxruntime(job: Job, feeds: dict[str, np.ndarray]) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 4
    # Its threads must not spin while another process runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for library in job["libraries"]:
        options.register_custom_ops_library(library)
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return lambda: dict(zip(names, session.run(None, given), strict=True))


def _openvino(job: Job, feeds: dict[str, np.ndarray]) -> Run:
    import openvino

    core = openvino.Core()
    settings = {
        # Without this it computes in bfloat16 on processors that have AMX.
        "INFERENCE_PRECISION_HINT": "bf16" if job["engine"].endswith("bf16") else "f32",
        "INFERENCE_NUM_THREADS": job["threads"],
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = core.read_model(job["model"])
    # Its names of inputs may be several; the first that there is a feed for is the model's.
    given = {
        next(name for name in value.get_names() if name in feeds): index
        for index, value in enumerate(model.inputs)
    }
    names = [min(value.get_names(), default=str(i)) for i, value in enumerate(model.outputs)]
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    tensors = {index: feeds[name] for name, index in given.items()}

    def run() -> dict[str, np.ndarray]:
        found = request.infer(tensors, share_inputs=True, share_outputs=True)
        return {name: found[index] for index, name in enumerate(names)}

    return run


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

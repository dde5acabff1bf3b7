"""The process that times one product after the other: `python products_child.py JOB.json`.

Imports nothing of ortkit. Prints a line when all products are ready. Then each line of its input
is the number of a product, and it answers with the seconds of single runs as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

_BFLOAT16 = 16
_LINE = 64
_LEAST_RUNS = 10


class Item(TypedDict):
    """One product."""

    model: str
    library: str
    shapes: list[list[int]]
    """Of A and of the weight: [rows, K] and [N, K], or NCHW and OIHW for a convolution."""
    stride: int
    padding: int


class Job(TypedDict):
    """What to time, how and with what."""

    engine: str
    """onnxruntime (float32), ortkit (bfloat16) or torch (oneDNN's bfloat16)."""
    threads: int
    seconds: float
    items: list[Item]


def main(job: Job) -> None:
    """Make all products ready, then time those that are asked for."""
    make = _torch_run if job["engine"] == "torch" else _session_run
    runs = [make(item, job) for item in job["items"]]
    for run in runs:
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        run = runs[int(line)]
        run()
        elapsed: list[float] = []
        until = time.perf_counter() + job["seconds"]
        while time.perf_counter() < until or len(elapsed) < _LEAST_RUNS:
            started = time.perf_counter()
            run()
            elapsed.append(time.perf_counter() - started)
        print(json.dumps(elapsed), flush=True)


def _session_run(item: Item, job: Job) -> Callable[[], object]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 4
    if item["library"]:
        options.register_custom_ops_library(item["library"])
    session = ort.InferenceSession(item["model"], options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    values = np.random.default_rng(0).standard_normal(given.shape, np.float32)
    if "bfloat16" in given.type:
        bits = _aligned((values.view(np.uint32) >> 16).astype(np.uint16))
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
    else:
        value = ort.OrtValue.ortvalue_from_numpy(_aligned(values))
    binding = session.io_binding()
    binding.bind_ortvalue_input(given.name, value)
    binding.bind_output(session.get_outputs()[0].name)
    return lambda: session.run_with_iobinding(binding)


def _aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that begins where a line of the cache does, as values inside a session do."""
    room = np.empty(values.nbytes + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    result = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    result[...] = values
    return result


def _torch_run(item: Item, job: Job) -> Callable[[], object]:
    import torch

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    left, weight = item["shapes"]
    a = torch.randn(left).bfloat16()
    layer: Any
    if len(left) == 2:
        layer = torch.nn.Linear(weight[1], weight[0], bias=False)
    else:
        sizes = weight[1], weight[0], weight[2], item["stride"], item["padding"]
        layer = torch.nn.Conv2d(*sizes, bias=False).to(memory_format=torch.channels_last)
        a = a.to(memory_format=torch.channels_last)
    layer = layer.bfloat16().eval()

    def run() -> object:
        with torch.inference_mode():
            return layer(a)

    return run


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

"""Traces as onnxruntime 1.31.1 writes them: with made-up times, or of a model that runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.profiling.trace.trace import Trace

SCHEDULING = {
    "main_thread": {
        "thread_pool_name": "session-1-intra-op", "thread_id": "139", "block_size": [1, 4],
        "core": 1, "Distribution": 3, "DistributionEnqueue": 2, "Run": 30, "Wait": 7,
        "WaitRevoke": 1,
    },
    "sub_threads": {
        "140": {"num_run": 12, "core": 0},
        "thread::id of a non-executing thread": {"num_run": 0, "core": -1},
    },
}  # fmt: skip
MEMORY = {
    "mem_bytes_in_use": "512", "mem_bytes_requested_in_use": "500", "mem_in_use_delta": "256",
    "mem_requested_in_use_delta": "-12", "mem_in_use_peak": "768", "mem_arena_held": "1024",
    "mem_arena_held_delta": "0",
}  # fmt: skip


def event(category: str, name: str, start: int, taken: int, thread: int, args: object) -> str:
    """Write one event as ONNX Runtime does."""
    return (
        f'{{"cat" : "{category}","pid" :7,"tid" :{thread},"dur" :{taken},"ts" :{start},'
        f'"ph" : "X","name" :{json.dumps(name)},"args" : {args_text(args)}}}'
    )


def args_text(args: object) -> str:
    """Write arguments with ONNX Runtime's spaces: none within lists of shapes."""
    if not isinstance(args, dict):
        return "{}"
    fields = []
    for key, value in args.items():
        separators = (",", ":") if key.endswith("_type_shape") else (", ", ": ")
        fields.append(f'"{key}" : {json.dumps(value, separators=separators)}')
    return "{" + ",".join(fields) + "}"


def node(
    op: str, start: int, taken: int, *, name: str = "", index: int = 0, thread: int = 7,
    inputs: Sequence[object] = (), outputs: Sequence[object] = (), **more: object,
) -> str:  # fmt: skip
    args = {
        "op_name": op, "provider": "CPUExecutionProvider", "node_index": str(index),
        "input_type_shape": list(inputs), "output_type_shape": list(outputs),
        "parameter_size": "8", "activation_size": "16", "output_size": "24", **more,
    }  # fmt: skip
    return event("Node", f"{name or op}_kernel_time", start, taken, thread, args)


def run(start: int, taken: int, thread: int = 7) -> str:
    return event("Session", "model_run", start, taken, thread, {})


def written(folder: Path, *events: str) -> Path:
    path = folder / "trace.json"
    loading = event("Session", "session_initialization", 0, 50, 7, {})
    path.write_text("[\n" + ",\n".join([loading, *events]) + "\n]\n", encoding="utf-8")
    return path


def traced(model: onnx.ModelProto, feeds: dict[str, np.ndarray], runs: int, folder: Path) -> Trace:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "trace")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for _ in range(runs):
        session.run(None, feeds)
    return read_trace(Path(session.end_profiling()))

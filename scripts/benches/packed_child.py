"""One process of `packed.py`: makes sessions, runs each once, and says what that took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort


def main(job: dict[str, Any]) -> None:
    """Make the sessions; answer one line with bytes and seconds for a line of input."""
    walls, cpus, sessions = [], [], []
    if job["shares_arena"]:
        # The arena of ONNX Runtime's environment, which `ortkit.Session(shared_arena=True)` uses.
        kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
        memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(memory, None)
    for _ in range(job["sessions"]):
        options = ort.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        options.log_severity_level = 3
        if job["shares_arena"]:
            options.add_session_config_entry("session.use_env_allocators", "1")
        model = Path(job["model"])
        library = model.with_suffix(".ops.so")
        if library.exists():
            options.register_custom_ops_library(str(library))
        wall, cpu = time.perf_counter(), time.process_time()
        made = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        sessions.append(made)
    feeds = {each.name: _made_up(each, job["size"]) for each in sessions[0].get_inputs()}
    for each in sessions:
        each.run(None, feeds)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"wall": walls[0], "cpu": cpus[0], "pss": _pss()}), flush=True)
    sys.stdin.readline()


def _made_up(spec: Any, size: int) -> Any:
    """Return an input of ones; a size that is not known is 1 in front, else `size`."""
    shape = [
        each if isinstance(each, int) else (size if axis else 1)
        for axis, each in enumerate(spec.shape)
    ]
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    return np.ones(shape, types.get(spec.type, np.float32))


def _pss() -> int:
    """Return the process's part of the memory that it has, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""The process that times regions: `python region_child.py JOB.json`; needs nothing of ortkit.

Each turn has a session of its own, because where a session puts its buffers is decided once, and
differs from session to session.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

_WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 5, 2000
_TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_,
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip


class Job(TypedDict):
    """Small models, each to be timed with and without the library."""

    models: list[str]
    library: str
    threads: int  # 0: ONNX Runtime decides
    rounds: int
    seconds: float  # of one turn
    result: str


class Timed(TypedDict):
    """Of one model the seconds of the fastest run of each turn; `problem` is empty if there."""

    body: list[float]
    kernel: list[float]
    problem: str


def main(job_file: str) -> None:
    """Run a job; the result is written again after each model, so that a crash keeps it."""
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    done: list[Timed] = []
    for model in job["models"]:
        try:
            done.append(_timed(model, job))
        except Exception as error:  # noqa: BLE001  whatever stops a session is the result
            problem = " ".join(str(error).split()) or type(error).__name__
            done.append({"body": [], "kernel": [], "problem": problem})
        written = Path(job["result"] + ".new")
        written.write_text(json.dumps(done), encoding="utf-8")
        written.replace(job["result"])


def _timed(model: str, job: Job) -> Timed:
    found: Timed = {"body": [], "kernel": [], "problem": ""}
    for _ in range(job["rounds"]):
        for is_kernel in (False, True, True, False):
            taken = _turn(model, job, is_kernel=is_kernel)
            found["kernel" if is_kernel else "body"].append(taken)
    return found


def _turn(model: str, job: Job, *, is_kernel: bool) -> float:
    """Return the fastest of some runs of a new session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = job["threads"]
    if is_kernel:
        options.add_session_config_entry("ortkit.fused.target", "cpu")
        options.register_custom_ops_library(job["library"])
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = _binding(session)
    for _ in range(_WARM_UP):
        session.run_with_iobinding(binding)
    taken: list[float] = []
    until = time.perf_counter() + job["seconds"]
    while len(taken) < _MOST_RUNS and (len(taken) < _LEAST_RUNS or time.perf_counter() < until):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        taken.append(time.perf_counter() - started)
    return min(taken)


def _binding(session: Any) -> Any:
    """Bind inputs, and outputs of the shapes that a first run has."""
    import onnxruntime as ort

    feeds = {one.name: _input(one, seed) for seed, one in enumerate(session.get_inputs())}
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    for one, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        binding.bind_ortvalue_output(one.name, ort.OrtValue.ortvalue_from_numpy(value))
    return binding


def _input(described: Any, seed: int) -> np.ndarray:
    name = described.type.removeprefix("tensor(").removesuffix(")")
    if name not in _TYPES:
        raise ValueError(f"inputs of type {name} cannot be made here")
    return made_up(np.dtype(_TYPES[name]), described.shape, seed)


def made_up(dtype: np.dtype[Any], shape: Sequence[int], seed: int) -> np.ndarray:
    """Return numbers that no operator trips over: between 0.5 and 1, or 0 and 1."""
    random = np.random.default_rng(seed)
    if dtype.kind in "biu":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    return np.asarray(random.uniform(0.5, 1.0, shape)).astype(dtype)


if __name__ == "__main__":
    main(sys.argv[1])

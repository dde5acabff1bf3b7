"""`scripts/bench provider`: what the OrtkitExecutionProvider gains without an optimize step.

For each model three sessions are interleaved: plain ONNX Runtime, ONNX Runtime with the provider,
and what `ortkit optimize` writes with its kernel library. Creation is timed in processes of their
own, with an empty cache and again. A chain of groups shows what one of them costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import helper

from scripts.benches import output

NAME = "OrtkitExecutionProvider"
GROUPS = 100
_CREATE = """
import sys, time
started = time.perf_counter()
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
imported = time.perf_counter()
providers = ["CPUExecutionProvider"]
if sys.argv[3] == "ours":
    import ortkit
    providers.insert(0, ortkit.register_provider())
ort.InferenceSession(sys.argv[1], options, providers=providers)
print(time.perf_counter() - imported)
"""


def main() -> int:
    """Time, print and write."""
    options = _parser().parse_args()
    import ortkit

    with tempfile.TemporaryDirectory(prefix="ortkit-bench-") as name:
        folder = Path(name)
        cache = options.cache or folder / "cache"
        os.environ["ORTKIT_CACHE"] = str(cache)
        ortkit.register_provider()
        models = [_model(path, folder, options) for path in options.models]
        overhead = _overhead(folder, options)
    _print(models, overhead)
    results = {**output.machine(None), "threads": options.threads, "models": models,
               "overhead": overhead}  # fmt: skip
    print(output.write(results, options.output, "provider"))
    return 0


def _model(path: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one model."""
    output.say(path.stem)
    created = {} if options.no_creation else _creation(path, folder, options.threads)
    feeds = dict(np.load(path.with_suffix(".npz")))
    optimized, library = _optimized(path, folder)
    sessions = {
        "plain": _session(path, options.threads, ["CPUExecutionProvider"]),
        "provider": _session(path, options.threads, [NAME, "CPUExecutionProvider"]),
        "optimized": _session(optimized, options.threads, ["CPUExecutionProvider"], library),
    }
    calls = {name: _call(session, feeds) for name, session in sessions.items()}
    results = {name: call() for name, call in calls.items()}
    errors = {
        name: max(_error(one, other) for one, other in zip(made, results["plain"], strict=True))
        for name, made in results.items()
    }
    milliseconds = _turns(calls, options.seconds)
    placed: dict[str, int] = {}
    for part in sessions["provider"].get_provider_graph_assignment_info():
        placed[part.ep_name] = placed.get(part.ep_name, 0) + len(part.get_nodes())
    optimized.unlink()
    return {
        "model": path.stem,
        "milliseconds": milliseconds,
        "errors": errors,
        "nodes": placed,
        "creation_seconds": created,
    }


def _session(path: Path, threads: int, providers: list[str], library: Path | None = None) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if library is not None:
        settings.register_custom_ops_library(str(library))
    return ort.InferenceSession(str(path), settings, providers=providers)


def _optimized(path: Path, folder: Path) -> tuple[Path, Path | None]:
    from ortkit import OptimizeOptions, optimize
    from ortkit.kernels.metadata import library_path

    target = folder / f"{path.stem}.opt.onnx"
    optimize(path, OptimizeOptions(verify=False)).save(target)
    library = library_path(target)
    return target, library if library.is_file() else None


def _call(session: Any, feeds: Mapping[str, np.ndarray]) -> Callable[[], list[np.ndarray]]:
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return lambda: session.run(None, given)


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0))


def _turns(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of each run; interleaved, in changing order."""
    elapsed: dict[str, list[float]] = {name: [] for name in calls}
    names, until = list(calls), time.perf_counter() + seconds
    while time.perf_counter() < until or len(elapsed[names[0]]) < 5:
        for name in names:
            started = time.perf_counter()
            calls[name]()
            elapsed[name].append((time.perf_counter() - started) * 1e3)
        names.append(names.pop(0))
    return elapsed


def _creation(path: Path, folder: Path, threads: int) -> dict[str, float]:
    """Return seconds that a session takes to be made, ortkit imported and registered with it."""
    cache = folder / f"cache-{path.stem}"
    cases = {"plain": "plain", "cold": "ours", "warm": "ours"}
    return {name: _created(path, threads, who, cache) for name, who in cases.items()}


def _created(path: Path, threads: int, who: str, cache: Path) -> float:
    command = [sys.executable, "-c", _CREATE, str(path), str(threads), who]
    surroundings = {**os.environ, "ORTKIT_CACHE": str(cache)}
    made = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    return float(made.stdout.split()[-1])


def _overhead(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return microseconds that one group takes, and the three nodes that it stands for."""
    times: dict[str, float] = {}
    for name, has_groups in (("chain", True), ("between", False)):
        path = folder / f"{name}.onnx"
        onnx.save(_chain(has_groups), path)
        sessions = {
            "plain": _session(path, 1, ["CPUExecutionProvider"]),
            "provider": _session(path, 1, [(NAME, {"level": "3"}), "CPUExecutionProvider"]),  # type: ignore[list-item]
        }
        feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32)}
        calls = {key: _call(session, feeds) for key, session in sessions.items()}
        elapsed = _turns(calls, min(options.seconds, 5.0))
        times |= {f"{key} {name}": median(each) * 1e3 for key, each in elapsed.items()}
    return {
        "group_us": (times["provider chain"] - times["provider between"]) / GROUPS,
        "nodes_us": (times["plain chain"] - times["plain between"]) / GROUPS,
    }


def _chain(has_groups: bool) -> onnx.ModelProto:
    """Return a chain of CumSums, which are never claimed, with Add, Mul and Tanh between them."""
    nodes, value = [], "x"
    for index in range(GROUPS):
        if has_groups:
            nodes += [
                helper.make_node("Add", [value, "c"], [f"a{index}"]),
                helper.make_node("Mul", [f"a{index}", "c"], [f"b{index}"]),
                helper.make_node("Relu", [f"b{index}"], [f"r{index}"]),
            ]
            value = f"r{index}"
        nodes.append(helper.make_node("CumSum", [value, "axis"], [f"y{index}"]))
        value = f"y{index}"
    half = onnx.numpy_helper.from_array(np.full(16, 0.01, np.float32), "c")
    axis = onnx.numpy_helper.from_array(np.array(0, np.int64), "axis")
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16])],
        [helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [16])],
        [half, axis],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _print(models: list[dict[str, Any]], overhead: Mapping[str, float]) -> None:
    rows: list[list[output.Cell]] = []
    for model in models:
        elapsed = model["milliseconds"]
        plain, ours, optimized = (median(elapsed[k]) for k in ("plain", "provider", "optimized"))
        fast = {key: min(each) for key, each in elapsed.items()}
        saved = plain - optimized
        share = (plain - ours) / saved if saved > 0.02 * plain else None
        created = model["creation_seconds"]
        rows.append(
            [
                model["model"], plain, ours, optimized, plain / ours, plain / optimized,
                fast["plain"] / fast["provider"], fast["plain"] / fast["optimized"], share,
                *(created.get(key) for key in ("plain", "cold", "warm")),
                sum(n for ep, n in model["nodes"].items() if ep == NAME),
            ]
        )  # fmt: skip
    header = ["model", "plain, ms", "provider, ms", "optimized, ms", "provider", "optimize",
              "its minima", "optimize's", "share of gain", "made, s", "cold, s", "warm, s",
              "nodes"]  # fmt: skip
    output.table("median of interleaved runs", header, rows)
    print(f"\none group of Add, Mul, Relu on 16 floats: {overhead['group_us']:.3f} µs, "
          f"its nodes in ONNX Runtime: {overhead['nodes_us']:.3f} µs")  # fmt: skip
    print(json.dumps({"overhead": overhead}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench provider", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL",
                        help="with its inputs beside it, as MODEL.npz")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of turns for each model")
    parser.add_argument("--no-creation", action="store_true", help="do not time creation")
    parser.add_argument("--cache", type=Path, help="kernels (default: an empty folder)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

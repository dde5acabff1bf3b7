"""`scripts/gpu_check`: what calls, bindings and CUDA graphs take on a GPU, and what stays of them.

Models are built by `models/`, with random weights; all ways of running one are interleaved. Times
are those of the host, for runs that end when their outputs are written.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.parser

import models
import ortkit
from ortkit.errors import OrtkitError
from ortkit.runtime.memory.devices import device_memory
from ortkit.runtime.native_library import NotAvailableError
from ortkit.runtime.profiling.cuda_activity import CudaActivity
from ortkit.runtime.profiling.trace.devices import busy_us
from scripts.benches import output

TINY = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }
"""
MODELS = ("bert", "vit", "resnet50", "mobilenet_v2", "whisper_encoder")
#: Seconds between looks at a gate.
_LOOKS = 0.2
Calls = dict[str, Callable[[], object]]


def main() -> int:
    """Measure, print and write."""
    options = _parser().parse_args()
    device = about_device()
    print(f"{device['name']}, onnxruntime {device['onnxruntime']}")
    results: dict[str, object] = {"device": device, "calls": calls(options.rounds * 10)}
    if options.sessions:  # before the models: what they leave behind would hide a growth
        results["sessions"] = sessions(options.sessions)
    found = [run_model(name, options) for name in options.models.split(",") if name]
    results["models"] = found
    header = ["model", "run", "session", "bound", "graph", "bound graph", "device", "difference"]
    output.table("ms a run (median), and of it the device", header, [_row(item) for item in found])
    print(f"\nwrote {output.write(results, options.output, 'gpu')}")
    return 0


def about_device() -> dict[str, object]:
    """Return the GPU's name and memory, and the versions of what uses it."""
    with ortkit.Session(onnx.parser.parse_model(TINY), "cuda") as session:
        session.run(np.ones((1, 4), np.float32))
        return device_memory(0).to_json() | {"onnxruntime": session.version}


def calls(rounds: int) -> dict[str, list[float]]:
    """Time calls on one tensor of 8 floats: what surrounds a single kernel."""
    x = np.ones((2, 4), np.float32)
    feeds, proto = {"x": x}, onnx.parser.parse_model(TINY)
    with (
        ortkit.Session(proto, "cuda") as session,
        ortkit.Session(proto, "cuda", cuda_graph=True) as graphs,
    ):
        raw, bound, captured = session.onnxruntime, session.bind(feeds), graphs.bind(feeds)
        io = _raw_binding(raw, feeds, session.run(feeds))
        elapsed = take_turns(
            {
                "InferenceSession.run": lambda: raw.run(None, feeds),
                "Session.run": lambda: session.run(feeds),
                "InferenceSession.run_with_iobinding": lambda: raw.run_with_iobinding(io),
                "Session.bind(...).run": bound.run,
                "cuda_graph: Session.run": lambda: graphs.run(feeds),
                "cuda_graph: Session.bind(...).run": captured.run,
            },
            rounds,
        )
    rows = [[name, 1e3 * median(times), 1e3 * min(times)] for name, times in elapsed.items()]
    output.table("calls on one tensor of 8 floats", ["call", "median, µs", "fastest, µs"], rows)
    return elapsed


def run_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time one model in all ways; what fails is said in `problem`."""
    proto = models.build(name, options.size, "dynamo")
    feeds = models.feeds(proto, batch=options.batch, sequence=options.sequence)
    try:
        with (
            ortkit.Session(proto, "cuda") as session,
            ortkit.Session(proto, "cuda", cuda_graph=True) as graphs,
        ):
            return {"model": name, **_compared(session, graphs, feeds, options.rounds)}
    except OrtkitError as error:
        return {"model": name, "problem": str(error)}


def _compared(
    session: ortkit.Session,
    graphs: ortkit.Session,
    feeds: Mapping[str, Any],
    rounds: int,
) -> dict[str, Any]:
    raw, bound, captured = session.onnxruntime, session.bind(feeds), graphs.bind(feeds)
    plain, replayed = session.run(feeds), graphs.run(feeds)
    graphs.run(feeds)
    difference = max(
        float(np.abs(plain[key].astype(np.float64) - replayed[key]).max()) for key in plain
    )
    elapsed = take_turns(
        {
            "run": lambda: raw.run(None, feeds),
            "session": lambda: session.run(feeds),
            "bound": bound.run,
            "graph": lambda: graphs.run(feeds),
            "bound graph": captured.run,
        },
        rounds,
    )
    return {
        "milliseconds": elapsed,
        "device_milliseconds": _on_device(bound.run, rounds),
        "graph_device_milliseconds": _on_device(captured.run, rounds),
        "difference": difference,
        "shapes": {key: list(value.shape) for key, value in feeds.items()},
        "notes": list(session.notes),
    }


def _on_device(run: Callable[[], object], rounds: int) -> float | str:
    """Return for how long a run keeps the device busy, or why that is not known."""
    try:
        with CudaActivity() as activity:
            for _ in range(rounds):
                run()
    except NotAvailableError as error:
        return str(error)
    return busy_us(activity.events(0)) / rounds / 1e3


def sessions(count: int) -> list[dict[str, int | float]]:
    """Open, run and close sessions; return what is held after each tenth of them."""
    proto, x = onnx.parser.parse_model(TINY), np.ones((8, 4), np.float32)
    found: list[dict[str, int | float]] = []
    for done in range(1, count + 1):
        with ortkit.Session(proto, "cuda", threads=1, cuda_graph=done % 2 == 0) as session:
            session.run(x)
            session.bind({"x": x}).run()
        if done % max(1, count // 10) == 0:
            gc.collect()
            found.append(
                {
                    "sessions": done,
                    "device_free_mb": device_memory(0).free / 1e6,
                    "resident_mb": _resident_kb() / 1e3,
                    "files": len(list(Path("/proc/self/fd").iterdir())),
                    "threads": len(list(Path("/proc/self/task").iterdir())),
                }
            )
    rows = [list(item.values()) for item in found]
    output.table(f"{count} sessions opened and closed", list(found[0]), rows)
    return found


@contextmanager
def alone(gate: Path | None) -> Iterator[None]:
    """Wait until all commands of a gate may measure, and then for this one's turn."""
    if gate is None:
        yield
        return
    gate.mkdir(parents=True, exist_ok=True)
    (gate / f"ready-{os.getpid()}").touch()
    while not (gate / "go").exists():
        time.sleep(_LOOKS)
    with (gate / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def take_turns(
    calls: Calls, rounds: int, each: int | Mapping[str, int] = 1
) -> dict[str, list[float]]:
    """Return milliseconds by call.

    Args:
        calls: What to time, by name.
        rounds: In each every call has its turn.
        each: Times that a turn takes, of all or by call. Where there are several, one more before
            them is not counted: it finds the caches as others have left them.
    """
    elapsed: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-5, rounds):
        for name, call in calls.items():
            times = each if isinstance(each, int) else each[name]
            if times > 1:
                call()
            for _ in range(times):
                started = time.perf_counter()
                call()
                if turn >= 0:
                    elapsed[name].append((time.perf_counter() - started) * 1e3)
    return elapsed


def _raw_binding(raw: Any, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    from onnxruntime import OrtValue

    io = raw.io_binding()
    for name, value in feeds.items():
        io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    for name, value in outputs.items():
        io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    return io


def _row(one: Mapping[str, Any]) -> list[output.Cell]:
    if "problem" in one:
        return [one["model"], one["problem"], *[""] * 6]
    device = one["device_milliseconds"]
    return [
        one["model"],
        *(median(times) for times in one["milliseconds"].values()),
        device if isinstance(device, float) else "not known",
        f"{one['difference']:.1e}",
    ]


def _resident_kb() -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(text.split("VmRSS:")[1].split()[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--size", default="full", choices=("tiny", "full"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=1000, help="to open and close; 0: none")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""`scripts/bench session`: what a call costs, and how much larger a session's calls are.

One tensor of eight floats through one Relu, so that nearly all of a call is what surrounds the
kernel. All ways of calling are interleaved; the median of many turns counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import onnx.parser

import ortkit
from scripts.benches import output

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }
"""


def main() -> int:
    """Time, print and write."""
    options = _parser().parse_args()
    x = np.ones((2, 4), np.float32)
    feeds = {"x": x}
    with ortkit.Session(onnx.parser.parse_model(TEXT), "cpu", threads=1) as session:
        raw = session.onnxruntime
        names = [spec.name for spec in session.outputs]
        bound = session.bind(feeds)
        io = raw.io_binding()
        io.bind_cpu_input("x", x)
        io.bind_output("y", "cpu")
        calls: dict[str, Callable[[], object]] = {
            "InferenceSession.run": lambda: raw.run(None, feeds),
            "InferenceSession.run, outputs named": lambda: raw.run(names, feeds),
            "Session.run": lambda: session.run(feeds),
            "InferenceSession.run_with_iobinding": lambda: raw.run_with_iobinding(io),
            "Session.bind(...).run": bound.run,
        }
        elapsed = _take_turns(calls, options.turns, options.calls)
    rows = [[name, median(times), min(times)] for name, times in elapsed.items()]
    output.table("calls on one tensor of 8 floats", ["call", "median, µs", "fastest, µs"], rows)
    medians = {name: median(times) for name, times in elapsed.items()}
    print(f"Session.run adds {medians['Session.run'] - medians['InferenceSession.run']:.2f} µs")
    added = medians["Session.bind(...).run"] - medians["InferenceSession.run_with_iobinding"]
    print(f"a bound run adds {added:.2f} µs")
    results = {**output.machine(None), "calls": options.calls, "microseconds": elapsed}
    print(output.write(results, options.output, "session"))
    return 0


def _take_turns(
    calls: dict[str, Callable[[], object]], turns: int, count: int
) -> dict[str, list[float]]:
    """Return microseconds a call, per turn."""
    elapsed: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(count):
                call()
            elapsed[name].append((time.perf_counter() - started) / count * 1e6)
    return elapsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench session", description=__doc__)
    parser.add_argument("--turns", type=int, default=31)
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    parser.add_argument("--calls", type=int, default=3000, help="in one turn")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

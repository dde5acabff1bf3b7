"""Pages of made-up profiles, as large as asked."""

from __future__ import annotations

import random
from typing import Any

from ortkit.runtime.profiling.page.write import Page

OPS = ("MatMul", "Softmax", "Add", "LayerNormalization", "Transpose", "Reshape", "Gather",
       "Concat", "Slice", "Cast", "Mul", "Erf")  # fmt: skip
HOSTILE = "<b>&lt;</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"

PEAKS = {
    "rates": [{"name": "float32", "value": 90.0}],
    "bandwidths": [{"name": "memory", "value": 14.0}, {"name": "caches", "value": 80.0}],
}


def page(nodes: int = 60, *, threads: int = 1, names: str = "", peaks: bool = True) -> Page:
    """Return a page; nodes are called `names` and their number, else by scope and operator.

    The operators take turns; node i starts after node i - 1 of its thread, with a gap of 1 µs.
    """
    chance = random.Random(0)
    ops = [OPS[index % len(OPS)] for index in range(nodes)]
    times = [round(chance.uniform(1, 900 if op == "MatMul" else 40), 1) for op in ops]
    ends = [0.0] * threads
    starts = []
    for index, taken in enumerate(times):
        starts.append(ends[index % threads] + 1)
        ends[index % threads] += taken + 1
    total = max(ends)
    called = [
        f"{names}{index}" if names else f"/layer.{index // 12}/{op}_{index}"
        for index, op in enumerate(ops)
    ]
    data: dict[str, Any] = {
        "run": {"number": 51, "of": 100, "duration": total},
        "lanes": [f"thread {index + 1}" for index in range(threads)],
        "bars": {
            "start": starts,
            "duration": times,
            "node": [*range(nodes)],
            "lane": [index % threads for index in range(nodes)],
            "depth": [0] * nodes,
            "label": [None] * nodes,
        },
        "nodes": {
            "name": called,
            "op": ops,
            "provider": ["CPUExecutionProvider"] * nodes,
            "calls": [1] * nodes,
            "time": times,
            "device": [None] * nodes,
            "share": [taken / total for taken in times],
            "mean": times,
            "p50": times,
            "p95": [1.5 * taken for taken in times],
            "gflops": [20.0 if op == "MatMul" else None for op in ops],
            "gbs": [2.0] * nodes,
            "intensity": [10.0 if op == "MatMul" else None for op in ops],
            "bytes": [4096 + index for index in range(nodes)],
            "inputs": ["float32[1,128,768], float32[768,768]"] * nodes,
            "outputs": ["float32[1,128,768]"] * nodes,
            "origins": [
                [f"origin_{index}", "shared"] if index % 5 == 0 else [] for index in range(nodes)
            ],
        },
        "kernels": {name: [] for name in ("name", "kind", "calls", "time", "share", "bytes")},
        "peaks": PEAKS if peaks else None,
        "peaks_missing": "" if peaks else "this machine's peaks were not measured",
        "memory": {
            "time": [*starts],
            "bytes": [1_000_000 + 10_000 * (index % 7) for index in range(nodes)],
            "of": "CPUExecutionProvider",
            "missing": "",
        },
    }
    data["ops"] = _ops(data["nodes"], total)
    return Page(
        f"{names or 'model'}.onnx", "made up", [("A run", "1.2 ms")],
        [(f"join {names}", "4 of them", "at most 0.1 ms")], [f"note {names}"], data,
    )  # fmt: skip


def _ops(nodes: dict[str, list[Any]], total: float) -> dict[str, list[Any]]:
    taken: dict[str, list[float]] = {}
    for op, time in zip(nodes["op"], nodes["time"], strict=True):
        taken.setdefault(op, []).append(time)
    ops = sorted(taken, key=lambda op: -sum(taken[op]))
    return {
        "op": ops,
        "provider": ["CPUExecutionProvider"] * len(ops),
        "nodes": [len(taken[op]) for op in ops],
        "calls": [len(taken[op]) for op in ops],
        "time": [sum(taken[op]) for op in ops],
        "device": [None] * len(ops),
        "share": [sum(taken[op]) / total for op in ops],
        "mean": [sum(taken[op]) / len(taken[op]) for op in ops],
        "p50": [sorted(taken[op])[len(taken[op]) // 2] for op in ops],
        "p95": [max(taken[op]) for op in ops],
        "gflops": [None] * len(ops),
        "gbs": [1.0] * len(ops),
    }

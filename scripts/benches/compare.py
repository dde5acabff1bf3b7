"""`python -m scripts.benches.compare A B FEEDS.npz`: count nodes, run both, print JSON.

A process of its own, so that a crash of the runtime is a result and memory is given back.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime as ort

#: Largest error, in units of the largest element of an output, that passes.
TOLERANCE = 1e-3


def main(original: Path, changed: Path, feeds: Path) -> dict[str, object]:
    """Return the nodes of `changed`, and how far its outputs are from those of `original`."""
    nodes = count(changed)
    with np.load(feeds) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    wanted, names = _run(original, inputs)
    try:
        got, found_names = _run(changed, inputs)
    except Exception as raised:  # noqa: BLE001 - the runtime's own classes share no base
        return {"nodes": nodes, "error": None, "fault": str(raised).splitlines()[0][:160]}
    if names != found_names:
        return {"nodes": nodes, "error": None, "fault": f"outputs are {found_names}"}
    error = max((_error(a, b) for a, b in zip(wanted, got, strict=True)), default=0.0)
    fault = "" if error <= TOLERANCE else f"outputs differ by {error:.1e}"
    return {"nodes": nodes, "error": error, "fault": fault}


def count(path: Path) -> int:
    """Count the nodes of a model, of its subgraphs and functions."""
    model = onnx.load(path, load_external_data=False)
    return _nodes(model.graph.node) + sum(_nodes(f.node) for f in model.functions)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    total = 0
    for node in nodes:
        total += 1
        for attribute in node.attribute:
            total += _nodes(attribute.g.node)
            total += sum(_nodes(graph.node) for graph in attribute.graphs)
    return total


def _run(path: Path, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # What the tool wrote is judged, not what the runtime makes of it.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    results = session.run(None, {name: array for name, array in feeds.items() if name in known})
    return results, [value.name for value in session.get_outputs()]


def _error(wanted: np.ndarray, got: np.ndarray) -> float:
    wanted, got = np.asarray(wanted), np.asarray(got)
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf")
    if wanted.dtype.kind not in "fc":
        return 0.0 if np.array_equal(wanted, got) else float("inf")
    if wanted.size == 0 or np.array_equal(wanted, got, equal_nan=True):
        return 0.0
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
    error = np.abs(np.asarray(got, np.float64) - wanted).max() / scale
    return float(error) if np.isfinite(error) else float("inf")


if __name__ == "__main__":
    print(json.dumps(main(*map(Path, sys.argv[1:4]))))

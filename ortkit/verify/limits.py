"""How long and how large the runs of a verification may get, from what a model is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ortkit.graph.analysis.cost import model_cost
from ortkit.graph.analysis.weights import weights_of
from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inline_functions
from ortkit.graph.walk import nodes_below, roots, subgraphs
from ortkit.runtime.machine import load_average

if TYPE_CHECKING:
    from ortkit.verify.inputs.feeds import Feeds

#: Trips of all loops in a run: ONNX Runtime takes some 10 us for one (1.31.1, 2026-11).
MAX_TRIPS = 1 << 22
#: Seconds for all sessions of a verification, on all input sets.
SECONDS = 60.0
_SECONDS_PER_NODE = 0.01
_SECONDS_PER_BYTE = 1 / (4 << 20)  # of weights
_SECONDS_PER_ELEMENT = 5e-6  # of inputs
_MOST_WAITING = 4.0
#: Values of a process, in bytes: of small models, as a part of the weights, and under a limit.
_LEAST_VALUES, _VALUES_PART, _FEWEST_VALUES = 64 << 20, 0.15, 4 << 20
#: Python and ONNX Runtime, and what weights take with their copies for kernels: bert-base with
#: 415 MiB takes 477 MiB in all (onnxruntime 1.31.1, 2026-11).
_PROCESS_BYTES, _WEIGHTS_PART = 96 << 20, 1.0
#: The part of the memory that is available which a process that runs sessions may take.
_MEMORY_PART = 0.9


def time_limit(model: ir.Model, *feeds: Feeds) -> float:
    """Return after how many seconds a verification of `model` ends.

    It grows with the model, and with the processes that share the processor.

    Args:
        model: The model.
        feeds: The input sets that each session runs.
    """
    nodes = sum(1 for root in roots(model) for _ in nodes_below(root))
    elements = sum(elements_of_feeds(each) for each in feeds)
    alone = (
        SECONDS
        + nodes * _SECONDS_PER_NODE
        + weights_of(model).bytes * _SECONDS_PER_BYTE
        + elements * _SECONDS_PER_ELEMENT
    )
    return alone * _waiting()


def _waiting() -> float:
    """Return how many processes wait for each core, at least 1 and at most `_MOST_WAITING`."""
    load = load_average() or 0.0
    return min(max(1.0, load / (os.cpu_count() or 1)), _MOST_WAITING)


def operations(model: ir.Model, sizes: Mapping[str, int] | None = None) -> int:
    """Count the arithmetic of a run.

    Args:
        model: The model, left as it is.
        sizes: Of named dimensions; others count as 1.
    """
    copy = model.clone()
    if copy.functions:
        inline_functions(copy)
    return model_cost(copy, sizes or {}).flops


def value_bytes(weights: int, memory: int | None) -> int:
    """Return the bytes of values that a process of verification gives at a time.

    It holds the weights, some of them twice, the values and what they are computed from. Without
    a limit of the user that comes to 1.5 times the weights, or to 512 MiB for small models.

    Args:
        weights: Bytes of the model's weights in float32.
        memory: What the user allows a process.
    """
    if memory is None:
        return max(_LEAST_VALUES, int(_VALUES_PART * weights))
    return max(_FEWEST_VALUES, (memory - _PROCESS_BYTES - int(_WEIGHTS_PART * weights)) // 3)


def elements_of_feeds(feeds: Feeds) -> int:
    """Return how many elements all inputs of a set hold."""
    return sum(
        part.size
        for value in feeds.values()
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, np.ndarray)
    )


def memory_limit(wanted: int | None = None) -> int:
    """Return the bytes that a process which runs sessions may allocate, 0 for no limit.

    Args:
        wanted: What the user allows; None: what is there.
    """
    available = _available_bytes()
    if wanted is None:
        return available
    return min(wanted, available) if available else wanted


def _available_bytes() -> int:
    """Return the part of the memory that may be taken, 0 if it is not known."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = dict(line.split(":", 1) for line in text.splitlines())
        limits = [int(found["MemAvailable"].split()[0]) << 10]
    except (OSError, KeyError, ValueError):
        return 0
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return int(_MEMORY_PART * min(limits))


def long_loop(model: ir.Model, most: int = MAX_TRIPS) -> str:
    """Say which Loop of `model` makes more than `most` trips whatever its inputs are; else "".

    Only trip counts that are constant count, of loops whose condition stays true.
    """
    for root in roots(model):
        for node, trips in _loops(root, 1):
            if trips > most:
                return (
                    f"Loop {node.name or node.outputs[0].name!r} makes {trips:,} trips,"
                    f" more than {most:,}"
                )
    return ""


def _loops(root: ir.Graph | ir.Function, around: int) -> Iterator[tuple[ir.Node, int]]:
    """Yield the loops of a graph with their trips, those of loops around them multiplied in."""
    for node in root:
        trips = around
        if node.domain == "" and node.op_type == "Loop":
            trips *= _trips(node)
            yield node, trips
        for body in subgraphs(node):
            yield from _loops(body, trips)


def _trips(node: ir.Node) -> int:
    """Return how often a Loop is sure to run; 1 if that is not known."""
    body = node.attributes.get("body")
    count = _scalar(node.inputs[0]) if node.inputs else None
    if count is None or body is None or body.is_ref() or not body.as_graph().outputs:
        return 1
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    starts = condition is None or _scalar(condition) == 1
    graph = body.as_graph()
    known: Mapping[ir.Value, bool] = {graph.inputs[1]: True} if len(graph.inputs) > 1 else {}
    kept = graph.outputs[0]
    while kept not in known and (made := kept.producer()) is not None:
        if made.op_type not in ("Identity", "Cast") or not made.inputs or made.inputs[0] is None:
            break
        kept = made.inputs[0]
    stays = kept in known or _scalar(kept) == 1
    return max(1, count) if starts and stays else 1


def _scalar(value: ir.Value | None) -> int | None:
    array = constant_array(value, limit=1) if value is not None else None
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        return None
    return int(array.reshape(-1)[0])

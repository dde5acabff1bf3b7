"""Time per node of chains and trees that grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.benches.output import Cell, say, table
from scripts.benches.tools import Tool, Usage, run

SIZES = (1_000, 10_000, 100_000)
#: So small that all its time is start-up.
BASE = 10


def measure(
    ours: Sequence[Tool], peers: Sequence[Tool], folder: Path, rounds: int, timeout: float
) -> list[dict[str, object]]:
    """Optimize growing graphs; print and return the time per node, start-up taken off."""
    found: list[dict[str, object]] = []
    rows: list[list[Cell]] = []
    for kind, make in (("chain", chain), ("tree", tree)):
        paths = {}
        for size in (BASE, *SIZES):
            paths[size] = folder / f"{kind}.{size}.onnx"
            onnx.save(make(size), paths[size])
        for tool in (*ours, *peers):
            say(f"scaling: {kind}, {tool.name}")
            repeat = rounds if tool in ours else 1
            usages = {size: _runs(tool, path, repeat, timeout) for size, path in paths.items()}
            found.append(_record(kind, tool, usages))
            rows.append(_row(kind, tool, usages))
    header = ["graph", "tool", *(f"{size:,}" for size in SIZES), "flat within", "100k wall s"]
    table("CPU microseconds per node, start-up taken off", header, rows)
    return found


def chain(size: int) -> onnx.ModelProto:
    """Return `size` nodes in a row, a third of which can go."""
    nodes, weights, name = [], [], "x"
    for index in range(size):
        op, extra, attributes = _link(index)
        if extra:
            number = np.full(4, 1 + index % 7, np.float32)
            weights.append(numpy_helper.from_array(number, f"c{index}"))
        inputs = [name, f"c{index}"] if extra else [name]
        name = f"v{index}" if index < size - 1 else "y"
        node = helper.make_node(op, inputs, [name], f"n{index}")
        node.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        nodes.append(node)
    return _model(nodes, weights)


def _link(index: int) -> tuple[str, bool, dict[str, list[int]]]:
    match index % 6:
        case 0:
            return "Relu", False, {}
        case 1 | 2:
            return "Transpose", False, {"perm": [1, 0]}
        case 3:
            return "Add", True, {}
        case 4:
            return "Sigmoid", False, {}
        case _:
            return "Mul", True, {}


def tree(size: int) -> onnx.ModelProto:
    """Return a balanced tree of additions, `size` nodes with its leaves."""
    nodes, weights, level = [], [], []
    names = iter(f"v{index}" for index in range(size))
    for index in range((size + 1) // 2):
        weights.append(numpy_helper.from_array(np.full(4, index + 0.5, np.float32), f"c{index}"))
        level.append(next(names))
        nodes.append(helper.make_node("Mul", ["x", f"c{index}"], [level[-1]], f"leaf{index}"))
    while len(level) > 1:
        level = list(_joined(level, nodes, names))
    nodes.append(helper.make_node("Relu", level, ["y"], "root"))
    return _model(nodes, weights)


def _joined(level: list[str], nodes: list[onnx.NodeProto], names: Iterator[str]) -> Iterator[str]:
    for left, right in zip(level[::2], level[1::2], strict=False):
        name = next(names)
        nodes.append(helper.make_node("Add", [left, right], [name], name))
        yield name
    if len(level) % 2:
        yield level[-1]


def _model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _runs(tool: Tool, path: Path, repeat: int, timeout: float) -> list[Usage]:
    target = path.with_name("out.onnx")
    found = []
    for _ in range(repeat):
        found.append(run(tool.command(path, target), timeout=timeout))
        if not found[-1].ok:
            break
    return found


def _per_node(usages: dict[int, list[Usage]]) -> list[float | None]:
    """Return microseconds of CPU time per node for each of `SIZES`."""
    if not all(usage.ok for usage in usages[BASE]):
        return [None] * len(SIZES)
    base = median(usage.cpu for usage in usages[BASE])
    return [
        (median(u.cpu for u in usages[size]) - base) / size * 1e6
        if all(u.ok for u in usages[size])
        else None
        for size in SIZES
    ]


def _row(kind: str, tool: Tool, usages: dict[int, list[Usage]]) -> list[Cell]:
    times = _per_node(usages)
    known = [one for one in times if one is not None]
    flat = max(known) / min(known) if len(known) == len(SIZES) and min(known) > 0 else None
    last = usages[SIZES[-1]]
    wall = median(u.wall for u in last) if all(u.ok for u in last) else None
    return [kind, tool.name, *(None if t is None else round(t) for t in times), flat, wall]


def _record(kind: str, tool: Tool, usages: dict[int, list[Usage]]) -> dict[str, object]:
    return {
        "graph": kind,
        "tool": tool.name,
        "us_per_node": dict(zip(map(str, SIZES), _per_node(usages), strict=True)),
        "wall": {str(size): [u.wall for u in used] for size, used in usages.items()},
        "cpu": {str(size): [u.cpu for u in used] for size, used in usages.items()},
        "fault": {str(size): used[-1].error for size, used in usages.items() if not used[-1].ok},
    }

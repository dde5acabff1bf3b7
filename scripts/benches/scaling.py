"""Time per node of chains and trees that grow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.benches.output import Cell, say, table
from scripts.benches.tools import Tool, ortkit, run

SIZES = (1_000, 10_000, 100_000)
#: So small that all its time is start-up.
BASE = 10


def measure(
    levels: Sequence[int], peers: Sequence[Tool], folder: Path, rounds: int, timeout: float
) -> list[dict[str, object]]:
    """Optimize growing graphs; print and return the CPU time per node, start-up kept out."""
    found: list[dict[str, object]] = []
    for kind, make in (("chain", chain), ("tree", tree)):
        paths = {size: folder / f"{kind}.{size}.onnx" for size in (BASE, *SIZES)}
        for size, path in paths.items():
            onnx.save(make(size), path)
        for level in levels:
            say(f"scaling: {kind}, ortkit -l{level}")
            found.append({"graph": kind, **_inside(level, paths, rounds)})
        for tool in peers:
            say(f"scaling: {kind}, {tool.name}")
            found.append({"graph": kind, **_whole(tool, paths, timeout)})
    header = ["graph", "tool", *(f"{size:,}" for size in SIZES), "flat within", "100k wall s"]
    table("CPU microseconds per node, start-up left out", header, [_row(item) for item in found])
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


def _inside(level: int, paths: dict[int, Path], rounds: int) -> dict[str, object]:
    """Measure ortkit in its process, sizes interleaved; the least disturbed round counts."""
    tool, target = ortkit(level), paths[BASE].with_name("out.onnx")
    cpu: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(rounds):
        for size in SIZES:
            files = [str(paths[BASE]), str(paths[size]), str(target)]
            command = [sys.executable, "-m", "scripts.benches.inside", str(level), *files]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cpu[size].append(float(done.stdout))
    return {
        "tool": tool.name,
        "us_per_node": [min(cpu[size]) / size * 1e6 for size in SIZES],
        "wall": run(tool.command(paths[SIZES[-1]], target)).wall,
        "cpu": {str(size): elapsed for size, elapsed in cpu.items()},
    }


def _whole(tool: Tool, paths: dict[int, Path], timeout: float) -> dict[str, object]:
    """Measure a peer as a process, once; a graph of a few nodes says what start-up takes."""
    target = paths[BASE].with_name("out.onnx")
    used = {size: run(tool.command(path, target), timeout=timeout) for size, path in paths.items()}
    return {
        "tool": tool.name,
        "us_per_node": [
            (used[size].cpu - used[BASE].cpu) / size * 1e6 if used[size].ok else None
            for size in SIZES
        ],
        "wall": used[SIZES[-1]].wall if used[SIZES[-1]].ok else None,
        "cpu": {str(size): usage.cpu for size, usage in used.items()},
        "fault": {str(size): usage.error for size, usage in used.items() if not usage.ok},
    }


def _row(one: dict[str, object]) -> list[Cell]:
    times = cast("list[float | None]", one["us_per_node"])
    known = [elapsed for elapsed in times if elapsed is not None]
    flat = max(known) / min(known) if len(known) == len(times) and min(known) > 0 else None
    shown = [None if elapsed is None else round(elapsed) for elapsed in times]
    wall = cast("float | None", one["wall"])
    return [str(one["graph"]), str(one["tool"]), *shown, flat, wall]

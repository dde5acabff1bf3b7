"""Memory on a 3 GB model whose weights lie in a sparse file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.benches.output import Cell, say, table
from scripts.benches.tools import Tool, run

SIDE = 8192
LAYERS = 12
WEIGHT_BYTES = SIDE * SIDE * 4
#: Only the last weight has a scale after it, which is folded into it.
CHANGED_BYTES = WEIGHT_BYTES
#: Above this a tool is stopped, so that the machine stays usable.
MOST_BYTES = 8 << 30
LIMIT_BYTES = int(1.3 * CHANGED_BYTES) + 500_000_000


def measure(tools: Sequence[Tool], folder: Path, timeout: float) -> list[dict[str, object]]:
    """Optimize the model; print and return the peak of private dirty memory."""
    source = folder / "large.onnx"
    build(source)
    found: list[dict[str, object]] = []
    rows: list[list[Cell]] = []
    for tool in tools:
        say(f"memory: {tool.name}")
        command = tool.command(source, folder / "out.onnx")
        used = run(command, timeout=timeout, watch=True, most_bytes=MOST_BYTES)
        fault = "" if used.ok else used.error or f"exit code {used.code}"
        if used.private_dirty_bytes > MOST_BYTES:
            fault = f"stopped above {MOST_BYTES / 1e9:.1f} GB"
        found.append(
            {
                "tool": tool.name,
                "private_dirty_bytes": used.private_dirty_bytes,
                "wall": used.wall,
                "fault": fault,
            }
        )
        rows.append([tool.name, round(used.private_dirty_bytes / 1e6), used.wall, fault[:60]])
        for path in folder.glob("out.*"):
            path.unlink()
    title = (
        f"A {LAYERS * WEIGHT_BYTES / 1e9:.1f} GB model, {CHANGED_BYTES / 1e6:.0f} MB change;"
        f" goal: below {LIMIT_BYTES / 1e6:.0f} MB private dirty"
    )
    table(title, ("tool", "peak MB", "wall s", "fault"), rows)
    return found


def build(path: Path) -> None:
    """Write the model and its sparse data file."""
    data = path.with_suffix(".data")
    with data.open("wb") as file:
        file.truncate(LAYERS * WEIGHT_BYTES)
        for index in range(LAYERS):
            # One row each is filled, so that no two weights are equal; the rest are holes.
            file.seek(index * WEIGHT_BYTES)
            file.write(np.full(SIDE, np.pi * (index + 1), np.float32).tobytes())
    nodes, weights, name = [], [], "x"
    for index in range(LAYERS):
        weights.append(_weight(f"w{index}", data.name, index * WEIGHT_BYTES))
        nodes.append(helper.make_node("MatMul", [name, f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"]))
        name = f"r{index}"
    nodes.pop()  # the last product is scaled, not cut off
    weights.append(numpy_helper.from_array(np.full(SIDE, 2, np.float32), "scale"))
    nodes.append(helper.make_node("Mul", [f"m{LAYERS - 1}", "scale"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIDE]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )


def _weight(name: str, location: str, offset: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", WEIGHT_BYTES)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor

"""Products with weights in 4 bits on a GPU, beside ONNX Runtime's: `scripts/bench cuda`.

Six products of the same rows and of matrices of their own, which come from memory, run in a CUDA
graph. Times are the host's until the device is done, of one product.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ortkit
from ortkit import Optimized
from scripts.benches import output
from scripts.benches.gpu import take_turns
from scripts.benches.output import Cell

#: Depth and columns; rows.
SHAPES = ((4096, 4096), (4096, 14336), (14336, 4096), (4096, 2048))
ROWS = (1, 4, 8, 16, 32, 33, 64, 100, 128, 129, 256, 513, 1024, 2048)
_BLOCK, _COUNT, _EACH = 32, 6, 10
_RNG = np.random.default_rng(0)


def products(depth: int, columns: int, block: int = _BLOCK) -> onnx.ModelProto:
    """Return products of rows, of any number, and matrices with random weights."""
    nodes, held, results = [], [], []
    for number in range(_COUNT):
        weight = _RNG.integers(0, 256, (columns, depth // block, block // 2), np.uint8)
        scale = _RNG.uniform(0.5, 1.5, columns * depth // block) * depth**-0.5 / 4.6
        held.append(numpy_helper.from_array(weight, f"w{number}"))
        held.append(numpy_helper.from_array(scale.astype(np.float16), f"s{number}"))
        nodes.append(
            helper.make_node(
                "MatMulNBits", ["x", f"w{number}", f"s{number}"], [f"y{number}"],
                domain="com.microsoft", K=depth, N=columns, bits=4, block_size=block,
            )
        )  # fmt: skip
        results.append(_info(f"y{number}", columns))
    graph = helper.make_graph(nodes, "products", [_info("x", depth)], results, held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _info(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT16, ("batch", "sequence", size))


def measure_nbits(folder: Path, arch: str, rounds: int) -> list[dict[str, Any]]:
    """Time each product as it is and as a kernel; microseconds."""
    rows = []
    for depth, columns in SHAPES:
        output.say(f"products of {depth} x {columns} in 4 bits")
        plain = folder / f"nbits-{depth}-{columns}.onnx"
        onnx.save(products(depth, columns), plain)
        options = ortkit.OptimizeOptions(target="cuda", arch=arch, verify=False)
        ours = ortkit.optimize(plain, options)
        for count in ROWS:
            x = _RNG.standard_normal((1, count, depth)).astype(np.float16)
            rows.append(
                {"depth": depth, "columns": columns, "rows": count}
                | _times(plain, ours, {"x": x}, rounds)
            )
    return rows


def _times(
    plain: Path, ours: Optimized, feeds: dict[str, np.ndarray[Any, Any]], rounds: int
) -> dict[str, float]:
    with (
        ortkit.Session(plain, "cuda", cuda_graph=True) as theirs,
        ortkit.Session(ours, "cuda", kernels="require", cuda_graph=True) as kernels,
    ):
        bound = {"plain": theirs.bind(feeds), "ortkit": kernels.bind(feeds)}
        found = [np.asarray(item.run()["y0"], np.float64) for item in bound.values()]
        calls = {name: one.run for name, one in bound.items()}
        elapsed = take_turns(calls, rounds, _EACH)
    off = float(np.linalg.norm(found[1] - found[0]) / np.linalg.norm(found[0]))
    return {name: 1e3 * median(times) / _COUNT for name, times in elapsed.items()} | {"off": off}


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the table: times, what a kernel gains, and bytes a nanosecond."""
    header = ["4 bits, float16", "rows", "onnxruntime", "kernel", "gain", "bytes/ns", "off"]
    table: list[list[Cell]] = []
    for row in rows:
        weights = row["depth"] * row["columns"]
        moved = weights / 2 + 2 * weights / _BLOCK
        gain, rate = row["plain"] / row["ortkit"], moved / row["ortkit"] / 1e3
        table.append(
            [
                f"{row['depth']} x {row['columns']}", row["rows"], row["plain"], row["ortkit"],
                gain, rate, f"{row['off']:.1e}",
            ]
        )  # fmt: skip
    return header, table

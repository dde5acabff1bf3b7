"""QuantizeLinear behind a value, as ONNX Runtime joins it with what is in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.int8.grids import Grid, dequantized, grid_of
from ortkit.fusion.regions.access import is_read_once
from ortkit.rewrite.scope import Scope


class Readers(Protocol):
    """Which nodes may be taken in."""

    @property
    def scope(self) -> Scope:
        """The graph's."""
        ...

    def reader(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of a value, if a region may take it in."""
        ...


@dataclass(frozen=True)
class Rounding:
    """What rounds a value to uint8: QuantizeLinear, and a Relu or Clip in front of it."""

    nodes: tuple[ir.Node, ...]
    grid: Grid


def find_rounding(readers: Readers, value: ir.Value) -> Rounding | None:
    """Return the QuantizeLinear to uint8 that alone reads a value.

    Relu and Clip in front of it are left out, as ONNX Runtime does, where the ends of the grid cut
    off as much. They are among the nodes.
    """
    node, scope = readers.reader(value), readers.scope
    if node is not None and not node.domain and node.op_type in ("Clip", "Relu"):
        found = find_rounding(readers, node.outputs[0]) if node.inputs[0] is value else None
        if found is None or not _is_cut_off(scope, node, found.grid):
            return None
        return Rounding((node, *found.nodes), found.grid)
    if node is None or not is_op(node, "QuantizeLinear") or node.inputs[0] is not value:
        return None
    grid = grid_of(scope, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)
    is_bytes = scope.shapes.dtype(node.outputs[0]) == ir.DataType.UINT8
    return Rounding((node,), grid) if grid is not None and is_bytes else None


def is_joined_multiplication(readers: Readers, node: ir.Node) -> bool:
    """Say whether ONNX Runtime multiplies bytes, with one scale for both and the result.

    It rounds otherwise than DequantizeLinear, Mul and QuantizeLinear do one by one.
    """
    if (node.domain, node.op_type) != ("", "Mul"):
        return False
    if find_rounding(readers, node.outputs[0]) is None:
        return False
    return all(dequantized(readers.scope, value) is not None for value in node.inputs)


def is_quantized_product(value: ir.Value | None) -> bool:
    """Say whether one node alone reads a float32 product in QDQ format."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return False
    sources = [None if item is None else item.producer() for item in node.inputs[:2]]
    return is_read_once(node.outputs[0]) and all(is_op(s, "DequantizeLinear") for s in sources)


def _is_cut_off(scope: Scope, node: ir.Node, grid: Grid) -> bool:
    """Say whether the ends of a grid cut off what a Relu or Clip does."""
    if node.op_type == "Relu":
        return grid.zero == 0
    lowest = float(np.float32(0 - grid.zero) * grid.scale)
    highest = float(np.float32(255 - grid.zero) * grid.scale)
    limits = [scope.array(value, 1) for value in node.inputs[1:]]
    if len(limits) != 2 or any(array is None or array.size != 1 for array in limits):
        return False
    low, high = (float(limit.reshape(())) for limit in limits if limit is not None)
    return low <= lowest and high >= highest

"""What quantized numbers stand for: grids of uint8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, quantized_axis
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

MICROSOFT = "com.microsoft"
Array = np.ndarray
#: Scales of grids; others are no quantization, and kernels differ in what they make of them.
_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max


@dataclass(frozen=True)
class Grid:
    """uint8 numbers q that stand for (q - zero) scale; both constant."""

    scale: np.float32
    zero: int


@dataclass(frozen=True)
class ChannelGrids:
    """uint8 numbers q that stand for (q - zero) scale, with a scale and a zero for each column."""

    scales: Array
    zeros: Array

    @property
    def zero(self) -> int | None:
        """What stands for 0 in all columns; None if that differs."""
        first = int(self.zeros[0])
        return first if (self.zeros == first).all() else None


def grid_of(scope: Scope, scale: ir.Value | None, zero: ir.Value | None) -> Grid | None:
    """Return the grid of one constant scale and one constant uint8."""
    step, middle = scope.array(scale, 1), scope.array(zero, 1)
    if step is None or step.dtype != np.float32 or not step.size:
        return None
    number = np.float32(step.reshape(()))
    if not _LEAST <= number <= _MOST:
        return None
    if zero is None:
        return Grid(number, 0)
    if middle is None or middle.dtype != np.uint8 or not middle.size:
        return None
    return Grid(number, int(middle.reshape(())))


def channel_grids(scope: Scope, node: ir.Node, columns: int, axis: int) -> ChannelGrids | None:
    """Return the grids of a QuantizeLinear or DequantizeLinear, one for each column.

    None if it has one grid for all of them, or another number.

    Args:
        scope: The graph's.
        node: The operator.
        columns: How many there are.
        axis: Theirs, from the last one back.
    """
    scales = scope.array(node.inputs[1], columns)
    zeros = scope.array(node.inputs[2], columns) if len(node.inputs) > 2 else None
    along, block = quantized_axis(Site(scope, node, ""), node)
    source = node.inputs[0]
    rank = None if source is None else scope.shapes.rank(source)
    if scales is None or scales.dtype != np.float32 or scales.shape != (columns,):
        return None
    if zeros is None or zeros.dtype != np.uint8 or zeros.shape != scales.shape:
        return None
    if block or rank is None or along != rank + axis:
        return None
    if not ((scales >= _LEAST) & (scales <= _MOST)).all():
        return None
    return ChannelGrids(scales, zeros)


def quotient(one: Array, other: Array | np.float32) -> Array:
    """Return the float32 quotient; infinite where it is too large."""
    with np.errstate(over="ignore"):
        return np.asarray(one / other, np.float32)


def dequantized(scope: Scope, value: ir.Value | None) -> tuple[ir.Value, Grid] | None:
    """Return the uint8 that a float32 is made of by DequantizeLinear, and their grid."""
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "DequantizeLinear") or node.inputs[0] is None:
        return None
    grid = grid_of(scope, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)
    source = node.inputs[0]
    is_bytes = scope.shapes.dtype(source) == ir.DataType.UINT8
    is_float = scope.shapes.dtype(node.outputs[0]) == ir.DataType.FLOAT
    return (source, grid) if grid is not None and is_bytes and is_float else None

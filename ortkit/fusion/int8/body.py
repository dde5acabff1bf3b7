"""The body of a region of bytes in the making: its nodes, and what its inputs stand for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.fusion.int8.grids import Array, Grid
from ortkit.fusion.regions.lower import detached_constant
from ortkit.kernels.node_writer import NodeWriter

#: Returns the constant of a graph that a key stands for, given its name and tensor.
Constants: TypeAlias = Callable[[Hashable, str, ir.TensorProtocol], ir.Value]


@dataclass
class BodyBuilder:
    """Nodes and inputs of a body.

    Args:
        stem: What the names of its own constants begin with.
        constants: Those that several regions may share.
        writer: Its nodes.
        inputs: Values of the graph by their names in the body.
    """

    stem: str
    constants: Constants
    writer: NodeWriter = field(default_factory=NodeWriter)
    inputs: dict[str, ir.Value] = field(default_factory=dict)

    def input(self, name: str, value: ir.Value) -> str:
        """Return the name of a value, an input called `name` if it is none yet."""
        for known, other in self.inputs.items():
            if other is value:
                return known
        self.inputs[name] = value
        return name

    def new_input(self, kind: str, value: ir.Value) -> str:
        """Return `input` of a value, called by its kind and number."""
        return self.input(f"{kind}{len(self.inputs)}", value)

    def row(self, name: str, row: Array | ir.TensorProtocol) -> str:
        """Return an input of numbers for each column, a constant of this region."""
        tensor = ir.tensor(np.ascontiguousarray(row)) if isinstance(row, np.ndarray) else row
        self.inputs[name] = detached_constant(tensor, f"{self.stem}/{name}")
        return name

    def new_row(self, kind: str, row: Array) -> str:
        """Return `row`, called by its kind and number."""
        return self.row(f"{kind}{len(self.inputs)}", row)

    def number(self, number: np.generic) -> str:
        """Return an input of one number; equal ones are not joined, so that layers are alike."""
        key = number.dtype.name, number.tobytes()
        held = f"{number.dtype.name}_{number.tobytes().hex()}"
        name = f"n{len(self.inputs)}"
        self.inputs[name] = self.constants(key, held, ir.tensor(number))
        return name

    def table(self, table: Array) -> str:
        """Return an input of 256 bytes."""
        name = f"l{len(self.inputs)}"
        held = f"{self.stem}/table{len(self.inputs)}"
        tensor = ir.tensor(table.copy())
        self.inputs[name] = self.constants(("table", table.tobytes()), held, tensor)
        return name

    def grid(self, grid: Grid) -> tuple[str, str]:
        """Return the names of a scale and a zero point."""
        is_one = grid.scale == 1.0
        scale = self.writer.number(1.0) if is_one else self.number(grid.scale)
        return scale, self.number(np.uint8(grid.zero))

    def quantized(self, name: str, grid: Grid) -> str:
        """Write a QuantizeLinear."""
        return self.writer.op("QuantizeLinear", name, *self.grid(grid))

    def dequantized(self, name: str, grid: Grid) -> str:
        """Write a DequantizeLinear."""
        return self.writer.op("DequantizeLinear", name, *self.grid(grid))

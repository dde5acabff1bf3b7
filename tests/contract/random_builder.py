"""A graph in the making, for random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy], object]


@dataclass
class Builder:
    """A graph in the making: every value with the shape it has when batch is 2."""

    draw: Draw
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, tuple[int, Shape]] = field(default_factory=dict)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"{self.prefix}v{self.count}"

    def op(self, op_type: str, inputs: list[str], dtype: int, shape: Shape, **attributes) -> str:
        name = self.fresh()
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"n_{name}", **attributes))
        self.values[name] = (dtype, shape)
        return name

    def const(self, array: np.ndarray) -> str:
        name = self.fresh()
        if self.draw(st.booleans()):
            tensor = numpy_helper.from_array(array)
            self.nodes.append(helper.make_node("Constant", [], [name], f"n_{name}", value=tensor))
        else:
            self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.const(np.array(numbers, np.int64))

    def pick(self, dtype: int = TensorProto.FLOAT, rank: int | None = None) -> str | None:
        fitting = [
            name
            for name, (kind, shape) in self.values.items()
            if kind == dtype and (rank is None or len(shape) == rank)
        ]
        return None if not fitting else str(self.draw(st.sampled_from(fitting)))

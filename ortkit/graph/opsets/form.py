"""How a node is written, as a value: adapters take and give it, so that nothing changes early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size

#: Above this many elements no constant is read.
READ_LIMIT = 4096


@dataclass(frozen=True, eq=False)
class New:
    """A constant to be added."""

    array: np.ndarray
    name: str
    """What it is, for its name: `axes`."""


@dataclass(frozen=True, eq=False)
class Made:
    """A node with one output to be put before the node in question."""

    op_type: str
    inputs: tuple[Operand, ...]
    attributes: Mapping[str, int | str] = field(default_factory=dict)


Operand: TypeAlias = "ir.Value | New | Made | None"


@dataclass(frozen=True, eq=False)
class Form:
    """How a node is written in some version of the opset."""

    node: ir.Node
    op_type: str
    inputs: tuple[Operand, ...]
    attributes: Mapping[str, ir.Attr]
    outputs: int

    @staticmethod
    def of(node: ir.Node) -> Form:
        """Return how `node` is written now."""
        return Form(
            node, node.op_type, tuple(node.inputs), dict(node.attributes), len(node.outputs)
        )

    # ---- reading -----------------------------------------------------------------------

    def input(self, index: int) -> Operand:
        """Return input `index`, None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def has_output(self, index: int) -> bool:
        """Say whether the node computes output `index`: whether it is connected."""
        return index < self.outputs and is_read(self.node.outputs[index])

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        found = self.attributes.get(name)
        return default if found is None else found.as_int()

    def real(self, name: str, default: float) -> float:
        """Return a float attribute."""
        found = self.attributes.get(name)
        return default if found is None else found.as_float()

    def integers(self, name: str) -> Sequence[int]:
        """Return an attribute of integers; empty where it is absent."""
        found = self.attributes.get(name)
        return () if found is None else found.as_ints()

    def reals(self, name: str) -> Sequence[float]:
        """Return an attribute of floats; empty where it is absent."""
        found = self.attributes.get(name)
        return () if found is None else found.as_floats()

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        found = self.attributes.get(name)
        return default if found is None else found.as_string()

    # ---- writing -----------------------------------------------------------------------

    def named(self, op_type: str) -> Form:
        """Return the same with another op."""
        return replace(self, op_type=op_type)

    def without(self, *names: str) -> Form:
        """Return the same without these attributes."""
        kept = {
            name: attribute for name, attribute in self.attributes.items() if name not in names
        }
        return replace(self, attributes=kept)

    def having(self, **attributes: int | str | Sequence[int]) -> Form:
        """Return the same with these attributes."""
        made = {
            name: ir.convenience.convert_attribute(name, value)
            for name, value in attributes.items()
        }
        return replace(self, attributes={**self.attributes, **made})

    def reading(self, *inputs: Operand) -> Form:
        """Return the same with these inputs; absent ones at the end are left out."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        return replace(self, inputs=inputs)

    def with_input(self, index: int, operand: Operand) -> Form:
        """Return the same with input `index` set."""
        padded = [*self.inputs, *(None for _ in range(index + 1 - len(self.inputs)))]
        padded[index] = operand
        return self.reading(*padded)

    def with_outputs(self, count: int) -> Form:
        """Return the same with the first `count` outputs only; the others must be unread."""
        return replace(self, outputs=min(count, self.outputs))


class Known:
    """What adapters may ask about values; shapes are inferred at the first question."""

    def __init__(self, model: ir.Model, version: int, shapes: Shapes | None) -> None:
        self.version = version
        """The version that the whole conversion leads to."""
        self._model = model
        self._shapes = shapes

    @property
    def shapes(self) -> Shapes:
        """What is known of the model's values."""
        if self._shapes is None:
            self._shapes = Shapes.infer(self._model)
        return self._shapes

    def dtype(self, operand: Operand) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""
        if isinstance(operand, New):
            return ir.DataType.from_numpy(operand.array.dtype)
        return self.shapes.dtype(operand) if isinstance(operand, ir.Value) else None

    def shape(self, operand: Operand) -> tuple[Size, ...] | None:
        """Return the shape, None where the rank is unknown."""
        if isinstance(operand, New):
            return operand.array.shape
        return self.shapes.shape(operand) if isinstance(operand, ir.Value) else None

    def array(self, operand: Operand) -> np.ndarray | None:
        """Return the data of a small constant."""
        if isinstance(operand, New):
            return operand.array
        if not isinstance(operand, ir.Value) or not is_constant(operand, self._model):
            return None
        return constant_array(operand, READ_LIMIT)


def is_read(value: ir.Value) -> bool:
    """Say whether anything reads `value`."""
    return bool(value.uses()) or value.is_graph_output()

"""A copy of a lowered model that computes in float32 with the weights that the lowering rounded.

Quantized numbers are floats there, and activations are not rounded. What the copy differs from the
original by is thus the error of the rounded weights, and the error of wrong scales, zero points,
layouts and biases. What it differs from the lowered model by is the rounding of activations.

A range that was calibrated cuts off larger activations: that may stand for an activation function
(a Relu behind a convolution), or cost something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, constant_tensor, is_constant
from ortkit.graph.walk import names_in, take_name
from ortkit.operators import where
from ortkit.verify.perturbed.perturbation import uniform_nodes

_FLOAT = ir.DataType.FLOAT
#: Operators that move numbers and compute none. All inputs of Concat are data, else the first.
_MOVES = (where(moves_only=True) - {"Split"}) | {"MaxPool"}
#: Bits behind the leading one, of types that weights are rounded to.
_FRACTION_BITS: Mapping[str, int] = {
    "FLOAT16": 10, "BFLOAT16": 7, "FLOAT8E4M3FN": 3, "FLOAT8E4M3FNUZ": 3, "FLOAT8E5M2": 2,
    "FLOAT8E5M2FNUZ": 2,
}  # fmt: skip
#: The rms of a float's step as a part of an epsilon of the float, over numbers whose logarithms
#: are spread evenly.
_STEP_PART = (3 / 8 / np.log(2)) ** 0.5
#: Weights may use this part of the range of their type: 7 bits of 8, of one sign.
_LEAST_USED = 0.25
#: The widest type whose range a weight is expected to use. Biases have 32 bits.
_WIDEST = 16
#: Bits of a float32, less two for a few roundings.
_FLOAT_BITS = 22
#: What is drawn for each integer, in steps. It is a wave of about half a turn from one integer to
#: the next, so it cancels where weights are spread over many.
_WAVE, _WAVE_DRAWS = 0.15, 16
_ONE = ir.tensor(np.ones(1, np.int8))


class Unrounding:
    """Writes the nodes of one copy."""

    def __init__(self, model: ir.Model, *, is_noisy: bool, saturates: bool) -> None:
        """Say how to write.

        Args:
            model: Changed in place. Its functions are inlined.
            is_noisy: Move each weight by up to half a step, by another amount in each run.
            saturates: Cut off both ends of ranges, not only half a step below zero at its end.
        """
        self.model, self._is_noisy, self._saturates = model, is_noisy, saturates
        self._names = names_in(model)
        self._numbers: dict[ir.Value, ir.Value] = {}
        self._weights: dict[tuple[ir.Value, ir.Graph | None], ir.Value] = {}
        self._before: ir.Node | None = None

    def go_to(self, node: ir.Node) -> None:
        """Put the next nodes in front of `node`."""
        self._before = node

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output."""
        return self.add(ir.node(op_type, list(inputs), attributes))

    def like(self, node: ir.Node, op_type: str, *inputs: ir.Value | None) -> ir.Value:
        """Add a node with the attributes of another one."""
        attributes = {each.name: each for each in node.attributes.values()}
        return self.add(ir.node(op_type, list(inputs), attributes))

    def add(self, node: ir.Node) -> ir.Value:
        """Add a node, and return its first output."""
        assert self._before is not None and self._before.graph is not None
        for value in node.outputs:
            value.name = take_name(self._names, "unrounded")
        self._before.graph.insert_before(self._before, node)
        return node.outputs[0]

    def constant(self, *numbers: int) -> ir.Value:
        """Add a constant of int64 [n]."""
        return self.array(np.array(numbers, np.int64))

    def scalar(self, number: float) -> ir.Value:
        """Add a constant of float32 []."""
        return self.array(np.array(number, np.float32))

    def array(self, array: np.ndarray) -> ir.Value:
        """Add a constant."""
        return self.op("Constant", value=ir.tensor(array))

    def wide(self, value: ir.Value) -> ir.Value:
        """Convert a value to float32."""
        return self.op("Cast", value, to=int(_FLOAT))

    # ---- numbers ---------------------------------------------------------------------------

    def number(self, value: ir.Value) -> ir.Value:
        """Return the float32 that stands for a quantized value."""
        if (known := self._numbers.get(value)) is not None:
            return known
        node = value.producer()
        if node is not None and node.domain == "" and node.op_type in _MOVES:
            count = len(node.inputs) if node.op_type == "Concat" else 1
            data = [self.number(each) for each in node.inputs[:count] if each is not None]
            return self.like(node, node.op_type, *data, *node.inputs[count:])
        assert self._before is not None
        key = value, self._before.graph
        if key not in self._weights:
            self._weights[key] = self._weight(value)
        return self._weights[key]

    def _weight(self, value: ir.Value) -> ir.Value:
        made, tensor = self.wide(value), constant_tensor(value)
        if tensor is None:
            return made
        if tensor.dtype.is_floating_point():
            return self.moved_float(made, tensor.dtype)
        array = tensor.numpy() if tensor.dtype.bitwidth <= _WIDEST and tensor.size else None
        return self.moved(made, 1.0 if array is None else used_part(array, tensor.dtype.bitwidth))

    def moved(self, value: ir.Value, step: float) -> ir.Value:
        """Move each element by up to half a step, if weights are to be moved."""
        if not self._is_noisy:
            return value
        drawn = self.op("Add", self._drawn(value), self._wave(value))
        return self.op("Add", value, self.op("Mul", drawn, self.scalar(step)))

    def _wave(self, value: ir.Value) -> ir.Value:
        """Draw a number for each integer, as equal weights are rounded by the same amount."""
        draws = (self._drawn(self.array(np.zeros(_WAVE_DRAWS, np.float32))) for _ in range(2))
        slope, start = (self.op("ReduceSum", each, keepdims=0) for each in draws)
        turn = self.op("Add", self.op("Mul", slope, self.scalar(0.5)), self.scalar(np.pi))
        angle = self.op("Add", self.op("Mul", value, turn), self.op("Mul", start, self.scalar(5)))
        return self.op("Mul", self.op("Sin", angle), self.scalar(_WAVE))

    def moved_float(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Move each element by up to half a step of a float type, if weights are to be moved."""
        if not self._is_noisy or dtype.name not in _FRACTION_BITS:
            return value
        part = self.scalar(float(_STEP_PART) * 2.0 ** -_FRACTION_BITS[dtype.name])
        step = self.op("Mul", value, part)
        return self.op("Add", value, self.op("Mul", self._drawn(value), step))

    def _drawn(self, value: ir.Value) -> ir.Value:
        """Draw numbers of at most a half, one for each element of `value`."""
        for node in uniform_nodes(self.model, value, float(len(self._names))):
            drawn = self.add(node)
        return self.op("Sub", drawn, self.scalar(1.0))

    # ---- scales ----------------------------------------------------------------------------

    def quantize(
        self,
        value: ir.Value,
        x: ir.Value,
        scale: ir.Value,
        zero: ir.Value | None,
        dtype: ir.DataType,
        axes: Mapping[str, ir.Attr],
    ) -> None:
        """Let a float stand for a quantized value.

        Args:
            value: The quantized value.
            x: What it is of.
            scale: Its scale.
            zero: Its zero point.
            dtype: The type that it is quantized to.
            axes: Attributes that say what scale and zero point belong to; see `axes_of`.
        """
        number = self.op("Div", x, self._spread(scale, x, axes))
        if zero is not None:
            number = self.op("Add", number, self._spread(zero, x, axes))
        number = self._saturated(number, zero, dtype)
        step = 1.0 if is_constant(x, self.model) else lost_step(dtype)
        self.keep(value, self.moved(number, step))

    def keep(self, value: ir.Value, number: ir.Value) -> None:
        """Let a float stand for a value."""
        self._numbers[value] = number

    def dequantize(
        self,
        value: ir.Value,
        scale: ir.Value | None,
        zero: ir.Value | None,
        axes: Mapping[str, ir.Attr],
    ) -> ir.Value:
        """Return what quantized numbers stand for, without a scale the numbers alone."""
        number = self.number(value)
        if zero is not None:
            number = self.op("Sub", number, self._spread(zero, number, axes))
        if scale is None:
            return number
        return self.op("Mul", number, self._spread(scale, number, axes))

    def _spread(self, param: ir.Value, like: ir.Value, axes: Mapping[str, ir.Attr]) -> ir.Value:
        """Return a scale or zero point as a float32 that broadcasts with `like`."""
        wide, tensor = self.wide(param), constant_tensor(param)
        if tensor is None or tensor.size == 1:
            return wide
        ones = self.op("ConstantOfShape", self.op("Shape", like), value=_ONE)
        return self.add(ir.node("DequantizeLinear", [ones, wide], axes))

    def _saturated(self, number: ir.Value, zero: ir.Value | None, dtype: ir.DataType) -> ir.Value:
        if dtype.is_floating_point():
            return number
        low = -(2.0 ** (dtype.bitwidth - 1)) if dtype.name.startswith("INT") else 0.0
        point = 0.0 if zero is None else constant_array(zero)
        if self._saturates:
            number = self.op("Max", number, self.scalar(low))
        elif point is not None and np.all(
            point == low
        ):  # what is just below zero is rounded to it
            number = self.op("Max", number, self.scalar(low - 0.5))
        if self._saturates:
            number = self.op("Min", number, self.scalar(low + 2.0**dtype.bitwidth - 1))
        return number

    def replace(self, value: ir.Value, by: ir.Value) -> None:
        """Let a float take the place of a value, under its name."""
        value.replace_all_uses_with(by, replace_graph_outputs=True)
        by.name, value.name = value.name, by.name
        by.type = value.type if value.dtype == _FLOAT else None


def axes_of(node: ir.Node) -> dict[str, ir.Attr]:
    """Return the attributes of a node that say which axis and block a scale belongs to."""
    return {n: node.attributes[n] for n in ("axis", "block_size") if n in node.attributes}


def lost_step(dtype: ir.DataType) -> float:
    """Return what float32 loses of numbers in the place of integers, as a part of a step."""
    return 2.0 ** (dtype.bitwidth - _FLOAT_BITS)


def used_part(numbers: np.ndarray, bits: int) -> float:
    """Return what to take for a step of integer weights: less than one if most are not used."""
    extent = float(numbers.max()) - float(numbers.min())
    return min(1.0, extent / (2.0**bits - 1) / _LEAST_USED)

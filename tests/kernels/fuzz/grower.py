"""What a region is grown with: the values so far, and new nodes, inputs and constants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.pointwise import USUAL
from fuzz.values import Shape, Size, Value, element, numpy_dtype

_ROWS = ("LayerNormalization", "RMSNormalization", "RotaryEmbedding")
#: Bound of the ordinary numbers that inputs hold.
_INPUT_BOUND = 4.0


@cache
def operand_dtypes(op: str, opset: int) -> frozenset[str]:
    """Return what an operator's first operand may be; nothing if an opset lacks it."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return frozenset()
    given = schema.inputs[0].type_str
    named = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    types = {text.removeprefix("tensor(").removesuffix(")") for text in named.get(given, [given])}
    return frozenset({"float": "float32", "double": "float64"}.get(name, name) for name in types)


class Grower:
    """A region in the making."""

    def __init__(self, rng: random.Random, opset: int, *, is_usual: bool = False) -> None:
        self.rng = rng
        self.opset = opset
        self.is_usual = is_usual
        """Whether only what networks are mostly made of is drawn."""
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.known: dict[str, Value] = {}

    def chance(self, share: float) -> bool:
        """Return True in a share of the cases."""
        return self.rng.random() < share

    def number(self) -> float:
        """Return a number as exporters write them."""
        return self.rng.choice((0.5, 1.0, 2.0, 3.0, -1.0, 0.0, 0.125, 1.702, -0.25, 1e-5))

    def takes(self, op: str, dtype: str) -> bool:
        """Return whether an operator of this opset exists and takes a dtype first."""
        if self.is_usual and not op.startswith("Reduce") and op not in (*USUAL, *_ROWS):
            return False
        return dtype in operand_dtypes(op, self.opset)

    def front(self) -> Value:
        """Return the newest value."""
        return self.values[-1]

    def pick(self) -> Value:
        """Return a value to go on with, mostly the newest."""
        return self.front() if self.chance(0.65) else self.rng.choice(self.values)

    def add_input(self, dtype: str, shape: Shape, *, is_positive: bool = False) -> Value:
        """Add an input; its elements are small numbers."""
        bound = 1.0 if dtype == "bool" else _INPUT_BOUND
        value = Value(f"x{len(self.inputs)}", dtype, shape, bound, is_positive)
        self.inputs.append(value)
        return self._known(value)

    def constant(self, array: np.ndarray | np.generic, dtype: str) -> str:
        """Add a Constant node; return its value's name."""
        name = f"c{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.asarray(array).astype(numpy_dtype(dtype)), name)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        shape = tuple(Size(size) for size in np.shape(array))
        self.known[name] = Value(name, dtype, shape, float(np.abs(array).max(initial=0)))
        return name

    def integers(self, numbers: Sequence[int]) -> str:
        """Add a list of integers as a constant."""
        return self.constant(np.asarray(numbers, np.int64), "int64")

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        dtype: str,
        shape: Shape,
        bound: float,
        *,
        is_positive: bool = False,
        **attributes: object,
    ) -> Value:
        """Add a node of one output."""
        value = Value(f"v{len(self.nodes)}", dtype, shape, bound, is_positive)
        self.nodes.append(helper.make_node(op, list(inputs), [value.name], **attributes))
        return self._known(value)

    def emit_parts(
        self, op: str, inputs: Sequence[str], like: Value, shapes: Sequence[Shape], **at: object
    ) -> None:
        """Add a node of several outputs, alike but for their shapes."""
        number = len(self.nodes)
        parts = [
            Value(f"v{number}_{i}", like.dtype, shape, like.bound, like.is_positive)
            for i, shape in enumerate(shapes)
        ]
        names = [part.name for part in parts]
        self.nodes.append(helper.make_node(op, list(inputs), names, **at))
        for part in parts:
            self._known(part)

    def cast(self, x: Value, dtype: str) -> Value:
        """Convert a value."""
        bound = 1.0 if dtype == "bool" else x.bound
        return self.emit("Cast", [x.name], dtype, x.shape, bound, to=element(dtype))

    def _known(self, value: Value) -> Value:
        self.values.append(value)
        self.known[value.name] = value
        return value

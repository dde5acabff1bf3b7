"""A region's body as a typed, straight line of pointwise steps; or why it is not one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx
import onnx.numpy_helper

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature, canonical_function
from ortkit.kernels.tvm.ops import DTYPES, POINTWISE_OPS, Attributes, PointwiseOp

Shape: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True)
class Constant:
    """A scalar that is written into the code."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True)
class Reference:
    """Value number `index`: the inputs come first, then the steps' results."""

    index: int


Operand: TypeAlias = Constant | Reference | None


@dataclass(frozen=True)
class Step:
    """One operator application; None among the operands is an absent optional input."""

    op_type: str
    operands: tuple[Operand, ...]
    attributes: Attributes
    dtype: str

    @property
    def op(self) -> PointwiseOp:
        """The operator's entry in the table."""
        return POINTWISE_OPS[self.op_type]


@dataclass(frozen=True)
class Program:
    """All steps of a region, in order.

    Args:
        input_dtypes: Per input.
        steps: Value number `len(input_dtypes) + i` is the result of step i.
        outputs: What each output is.
    """

    input_dtypes: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Reference, ...]

    @property
    def flops_per_point(self) -> int:
        """The cost of one point in simple vector operations."""
        return sum(step.op.flops for step in self.steps)


@dataclass
class _Reader:
    """The values known so far, by name in the body."""

    operands: dict[str, Operand] = field(default_factory=dict)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def dtype_of(self, operand: Constant | Reference) -> str:
        return operand.dtype if isinstance(operand, Constant) else self.dtypes[operand.index]

    def shape_of(self, operand: Operand) -> Shape:
        return self.shapes[operand.index] if isinstance(operand, Reference) else ()

    def add(
        self, op_type: str, operands: Sequence[Operand], attributes: Attributes
    ) -> Reference | Refused:
        op = POINTWISE_OPS[op_type]
        dtype = op.result([self.dtype_of(x) for x in operands if x is not None], attributes)
        if isinstance(dtype, Refused):
            return Refused(f"{op_type} with {dtype.reason}")
        shape = _broadcast([self.shape_of(operand) for operand in operands])
        if isinstance(shape, Refused):
            return shape
        self.steps.append(Step(op_type, tuple(operands), attributes, dtype))
        self.dtypes.append(dtype)
        self.shapes.append(shape)
        return Reference(len(self.dtypes) - 1)


def read_program(signature: RegionSignature) -> Program | Refused:
    """Return the region's steps, or why they are no pointwise program of known operators."""
    function = canonical_function(signature.function())
    reader = _Reader()
    for name, spec in zip(function.input, signature.inputs, strict=True):
        if spec.dtype not in DTYPES:
            return Refused(f"input {spec.name!r} of type {spec.dtype}")
        reader.operands[name] = Reference(len(reader.dtypes))
        reader.dtypes.append(spec.dtype)
        reader.shapes.append(spec.shape)
    for node in function.node:
        if refused := _read_node(reader, node):
            return refused
    outputs: list[Reference] = []
    for name, spec in zip(function.output, signature.outputs, strict=True):
        output = reader.operands.get(name)
        if not isinstance(output, Reference):
            return Refused(f"output {spec.name!r} is a constant")
        found = (reader.dtypes[output.index], reader.shapes[output.index])
        if found != (spec.dtype, spec.shape):
            return Refused(
                f"output {spec.name!r} is {_tensor(*found)}, not {_tensor(spec.dtype, spec.shape)}"
            )
        outputs.append(output)
    inputs = tuple(spec.dtype for spec in signature.inputs)
    return Program(inputs, tuple(reader.steps), tuple(outputs))


def _read_node(reader: _Reader, node: onnx.NodeProto) -> Refused | None:
    if node.domain not in ("", "ai.onnx"):
        return Refused(f"operator {node.domain}::{node.op_type}")
    if node.op_type == "Constant":
        constant = _constant(node)
        if isinstance(constant, Refused):
            return constant
        reader.operands[node.output[0]] = constant
        return None
    operands = [reader.operands.get(name) for name in node.input]
    result = _pow(reader, operands) if node.op_type == "Pow" else _apply(reader, node, operands)
    if isinstance(result, Refused):
        return result
    reader.operands[node.output[0]] = result
    return None


def _apply(reader: _Reader, node: onnx.NodeProto, operands: list[Operand]) -> Reference | Refused:
    op = POINTWISE_OPS.get(node.op_type)
    if op is None:
        return Refused(f"operator {node.op_type}")
    attributes = dict(op.attributes)
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name not in attributes or attribute.ref_attr_name:
            return Refused(f"{node.op_type} with attribute {attribute.name!r}")
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    if node.op_type == "Clip":
        operands += [None] * (3 - len(operands))
    elif None in operands:
        return Refused(f"{node.op_type} without one of its inputs")
    return reader.add(node.op_type, operands, attributes)


def _pow(reader: _Reader, operands: list[Operand]) -> Reference | Refused:
    """Write powers with a small constant exponent as products and roots."""
    base, exponent = operands
    if not isinstance(exponent, Constant) or base is None:
        return Refused("Pow with an exponent that is no constant")
    if reader.dtype_of(base) != "float32":
        return Refused(f"Pow of type {reader.dtype_of(base)}")
    if exponent.value in (2, 3):
        square = reader.add("Mul", (base, base), {})
        if exponent.value == 2 or isinstance(square, Refused):
            return square
        return reader.add("Mul", (base, square), {})
    simple = {0.5: "Sqrt", 1: "Identity", -1: "Reciprocal"}
    if exponent.value in simple:
        return reader.add(simple[exponent.value], (base,), {})
    return Refused(f"Pow with exponent {exponent.value}")


def _constant(node: onnx.NodeProto) -> Constant | Refused:
    attribute = node.attribute[0]
    if attribute.name == "value_float":
        return Constant(attribute.f, "float32")
    if attribute.name == "value_int":
        return Constant(attribute.i, "int64")
    if attribute.name != "value":
        return Refused(f"a constant given as {attribute.name!r}")
    array = onnx.numpy_helper.to_array(attribute.t)
    if array.size != 1 or array.dtype.name not in DTYPES:
        return Refused(f"a constant of type {array.dtype.name} and shape {list(array.shape)}")
    if array.ndim:
        # Its rank may lift the rank of a result: shapes would have to follow it.
        array = array.reshape(())
    return Constant(array.item(), array.dtype.name)


def _broadcast(shapes: Sequence[Shape]) -> Shape | Refused:
    """Return numpy's broadcast of shapes, where names are equal or not by their spelling."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[int | str] = []
    for dims in zip(*padded, strict=True):
        sizes = set(dims) - {1}
        if len(sizes) > 1:
            return Refused(f"sizes {', '.join(sorted(map(str, sizes)))} meet")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _tensor(dtype: str, shape: Shape) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"

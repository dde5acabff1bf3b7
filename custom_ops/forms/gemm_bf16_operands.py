"""The operands of a bfloat16 product in a region's body: rounded inputs, packed weights."""

from __future__ import annotations

import onnx

from .body import Body, integer, integers

FLOAT, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def source_of_cast(body: Body, name: str, to: int) -> str | None:
    """Return what `name` is a Cast of, to an element type as ONNX numbers it."""
    node = body.producer(name, "Cast")
    return str(node.input[0]) if node is not None and integer(node, "to", 0) == to else None


def rounded_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is, as float32, after it was rounded to bfloat16."""
    rounded = source_of_cast(body, name, FLOAT)
    if rounded is None:
        return None
    number = body.inputs.get(rounded)
    if number is not None:
        return number if body.signature.inputs[number].dtype == "bfloat16" else None
    source = body.inputs.get(source_of_cast(body, rounded, BFLOAT16) or "")
    if source is None or body.signature.inputs[source].dtype != "float32":
        return None
    return source


def gated_input(body: Body, name: str) -> tuple[int, int] | None:
    """Return the input and its gate whose product `name` is, as float32, after it was rounded.

    Of the two the gate has one pixel; the other is float32, or bfloat16 made wide.
    """
    rounded = source_of_cast(body, name, FLOAT)
    source = None if rounded is None else source_of_cast(body, rounded, BFLOAT16)
    product = None if source is None else body.producer(source, "Mul")
    if product is None:
        return None
    for one, other in (product.input, product.input[::-1]):
        a, gate = wide_input(body, one), body.inputs.get(other)
        if a is None or gate is None or body.signature.inputs[gate].dtype != "float32":
            continue
        if body.signature.inputs[gate].shape[1:3] == (1, 1):
            return a, gate
    return None


def wide_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is as float32."""
    number = body.inputs.get(name)
    if number is not None:
        return number if body.signature.inputs[number].dtype == "float32" else None
    number = body.inputs.get(source_of_cast(body, name, FLOAT) or "")
    if number is None or body.signature.inputs[number].dtype != "bfloat16":
        return None
    return number


def packed_input_of(body: Body, name: str) -> tuple[int, int] | None:
    """Return the input that may be the packed weight after `name`, and the columns it has."""
    columns = None
    cut = body.producer(name, "Slice")
    if cut is not None:
        ends = body.constant(cut.input[2]) if len(cut.input) > 2 else None
        if ends is None or ends.size != 2:
            return None
        columns, name = int(ends.flat[1]), cut.input[0]
    shaped = body.producer(name, "Reshape")
    shape = None if shaped is None else body.constant(shaped.input[1])
    if shaped is None or shape is None or shape.size != 2:
        return None
    transposed = body.producer(shaped.input[0], "Transpose")
    source = "" if transposed is None else source_of_cast(body, transposed.input[0], FLOAT) or ""
    number = body.inputs.get(source)
    if number is None or transposed is None or integers(transposed, "perm", ()) != (1, 3, 0, 2):
        return None
    spec = body.signature.inputs[number]
    if spec.dtype != "bfloat16" or len(spec.shape) != 4:
        return None
    return number, int(shape.flat[1]) if columns is None else columns

"""Casts between float32 and bfloat16 in a region's body, and the inputs behind them."""

from __future__ import annotations

import onnx

from .body import Body, integer

FLOAT, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def source_of_cast(body: Body, name: str, to: int) -> str | None:
    """Return what `name` is a Cast of, to an element type as ONNX numbers it."""
    node = body.producer(name, "Cast")
    return str(node.input[0]) if node is not None and integer(node, "to", 0) == to else None


def before_rounding(body: Body, name: str) -> str | None:
    """Return what is rounded to bfloat16, or is bfloat16, where `name` is that as float32."""
    rounded = source_of_cast(body, name, FLOAT)
    if rounded is None:
        return None
    source = source_of_cast(body, rounded, BFLOAT16)
    if source is not None:
        return source
    number = body.inputs.get(rounded)
    is_narrow = number is not None and body.signature.inputs[number].dtype == "bfloat16"
    return rounded if is_narrow else None


def wide_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is as float32."""
    number = body.inputs.get(name)
    if number is not None:
        return number if body.signature.inputs[number].dtype == "float32" else None
    number = body.inputs.get(source_of_cast(body, name, FLOAT) or "")
    if number is None or body.signature.inputs[number].dtype != "bfloat16":
        return None
    return number

"""A copy of a model in which every float16 and bfloat16 value is a float32 value.

float16 and bfloat16 weights widen exactly, and a Cast between float types becomes a copy. Two
models that compute the same function agree in their wide copies up to roundings of float32,
whatever type they are written in.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_tensor
from ortkit.graph.inline import inline_functions
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, roots
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.inputs.feeds import Value

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WIDE = ir.DataType.FLOAT
#: Of values in wide copies: the type in half precision that the model has them in.
_ROUNDED_TO = "ortkit.rounded_to"
#: Attributes that name the type of a result or of an intermediate value.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision", "stash_type")

#: Kinds of attributes that name no type; the nodes of graphs are looked at on their own.
_WITHOUT_TYPES = (
    ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INTS,
    ir.AttributeType.STRING, ir.AttributeType.STRINGS, ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
)  # fmt: skip


def widened(model: ir.Model) -> ir.Model:
    """Return a copy with functions inlined and every value in half precision in float32.

    Functions that cannot be inlined stay, with their bodies widened. The tensors of float32 models
    are shared with the copy; others are converted when they are read.
    """
    copy = model.clone()
    if copy.functions:
        inline_functions(copy)
    if not _may_have_halves(copy):
        return copy
    shapes = Shapes.infer(copy)
    for graph in copy.graphs():
        for value in graph.initializers.values():
            _widen_constant(value)
        for value in graph.inputs:
            _widen_value(value, shapes.dtype(value))
    for root in roots(copy):
        for node in nodes_below(root):
            for value in node.outputs:
                _widen_value(value, shapes.dtype(value))
            _widen_attributes(node)
    return copy


def rounded_to(value: ir.Value) -> ir.DataType | None:
    """Return the type in half precision that a value of a wide copy has in the model."""
    dtype: ir.DataType | None = value.meta.get(_ROUNDED_TO)
    return dtype


def half_constants(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return the constants of a wide copy that were in half precision, and their type."""
    found = {value: rounded_to(value) for value in float_constants(model)}
    return {value: dtype for value, dtype in found.items() if dtype is not None}


def float_constants(model: ir.Model) -> list[ir.Value]:
    """Return the constants of a wide copy that are in float32."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    for node in nodes_below(model.graph):
        values += node.outputs if node.op_type == "Constant" and not node.domain else ()
    tensors = ((value, constant_tensor(value)) for value in values)
    return [v for v, tensor in tensors if tensor is not None and tensor.dtype == _WIDE]


def _may_have_halves(model: ir.Model) -> bool:
    """Say whether anything in a model names a type in half precision, or might."""
    for graph in model.graphs():
        tensors = [value.const_value for value in graph.initializers.values()]
        if any(tensor is not None and tensor.dtype in HALVES for tensor in tensors):
            return True
        if any(_is_half(value.type) for value in (*graph.inputs, *graph.outputs)):
            return True
        for node in graph:
            if any(_is_half(value.type) for value in node.outputs):
                return True
            if any(map(_might_be_half, node.attributes.values())):
                return True
    return bool(model.functions)


def _is_half(kind: ir.TypeProtocol | None) -> bool:
    return kind is not None and _wide_type(kind) is not kind


def _might_be_half(attribute: ir.Attr) -> bool:
    """Say whether an attribute is in half precision, names such a type, or might."""
    if attribute.is_ref():
        return True
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype in HALVES
    if attribute.type == ir.AttributeType.INT:
        return attribute.as_int() in map(int, HALVES)
    return attribute.type not in _WITHOUT_TYPES


def _widen_constant(value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is not None and tensor.dtype in HALVES:
        read = partial(_as_float32, tensor, value.name)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.LazyTensor(read, _WIDE, shape, name=value.name)
        _widen_value(value, tensor.dtype)


def _widen_value(value: ir.Value, dtype: ir.DataType | None) -> None:
    if dtype in HALVES:
        value.meta[_ROUNDED_TO] = dtype
    _widen_type(value)


def _widen_type(value: ir.Value) -> None:
    # Copies of a model share the objects that types are.
    value.type = _wide_type(value.type)


def _wide_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        inner = _wide_type(kind.elem_type)
        return kind if inner is kind.elem_type or inner is None else type(kind)(inner)
    is_half = isinstance(kind, ir.TensorType) and kind.dtype in HALVES
    return ir.TensorType(_WIDE) if is_half else kind


def _widen_attributes(node: ir.Node) -> None:
    for attribute in list(node.attributes.values()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in HALVES:
                wide = _as_float32(tensor, tensor.name)
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, wide)
                if node.op_type == "Constant":
                    node.outputs[0].const_value = None
        elif _names_a_half(attribute):
            node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(_WIDE))


def _names_a_half(attribute: ir.Attr) -> bool:
    if attribute.type != ir.AttributeType.INT or attribute.name not in _TYPE_ATTRIBUTES:
        return False
    return attribute.as_int() in {int(half) for half in HALVES}


def _as_float32(tensor: ir.TensorProtocol, name: str | None) -> ir.Tensor[np.ndarray]:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=name)


def widened_feeds(feeds: Path, folder: Path) -> Path:
    """Return an input set in which half precision is float32; the same one if there is none.

    Args:
        feeds: The folder of an input set.
        folder: Where another one is made.
    """
    values = read_values(feeds)
    halves = {half.numpy() for half in HALVES}
    if not any(_has(value, halves) for value in values.values()):
        return feeds
    wide = folder / feeds.name
    write_feeds(wide, {name: _wide(value, halves) for name, value in values.items()})
    return wide


def _has(value: Value, types: set[np.dtype]) -> bool:
    parts = value if isinstance(value, list) else [value]
    return any(part is not None and part.dtype in types for part in parts)


def _wide(value: Value, types: set[np.dtype]) -> Value:
    if isinstance(value, list):
        return [part.astype(np.float32) if part.dtype in types else part for part in value]
    if value is None or value.dtype not in types:
        return value
    return value.astype(np.float32)

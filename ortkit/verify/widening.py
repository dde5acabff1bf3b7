"""A copy of a model in which every float16 and bfloat16 value is a float32 value.

float16 and bfloat16 weights widen exactly, and a Cast between float types becomes a copy. Two
models that compute the same function agree in their wide copies up to roundings of float32,
whatever type they are written in.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from ortkit.graph.inline import inline_functions
from ortkit.graph.walk import nodes_below, roots

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WIDE = ir.DataType.FLOAT
#: Of constants in wide copies: the type that their numbers were rounded to.
_ROUNDED_TO = "ortkit.rounded_to"
#: Attributes that name the type of a result or of an intermediate value.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision", "stash_type")


def widened(model: ir.Model) -> ir.Model:
    """Return a copy with functions inlined and every value in half precision in float32.

    Functions that cannot be inlined stay, with their bodies widened. The tensors of float32 models
    are shared with the copy; others are converted when they are read.
    """
    copy = model.clone()
    if copy.functions:
        inline_functions(copy)
    for graph in copy.graphs():
        for value in graph.initializers.values():
            _widen_constant(value)
        for value in graph.inputs:
            _widen_type(value)
    for root in roots(copy):
        for node in nodes_below(root):
            for value in node.outputs:
                _widen_type(value)
            _widen_attributes(node)
    return copy


def half_constants(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return the constants of a wide copy that were in half precision, and their type."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    values += [value for node in nodes_below(model.graph) for value in node.outputs]
    return {v: v.meta[_ROUNDED_TO] for v in values if _ROUNDED_TO in v.meta}


def _widen_constant(value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is not None and tensor.dtype in HALVES:
        read = partial(_as_float32, tensor, value.name)
        value.meta[_ROUNDED_TO] = tensor.dtype
        value.const_value = ir.LazyTensor(
            read, _WIDE, ir.Shape(tensor.shape.numpy()), name=value.name
        )
    _widen_type(value)


def _widen_type(value: ir.Value) -> None:
    kind = value.type
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    if isinstance(kind, ir.TensorType) and kind.dtype in HALVES:
        kind.dtype = _WIDE


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
                    node.outputs[0].meta[_ROUNDED_TO] = tensor.dtype
                    node.outputs[0].const_value = None
        elif _names_a_half(attribute):
            node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(_WIDE))


def _names_a_half(attribute: ir.Attr) -> bool:
    if attribute.type != ir.AttributeType.INT or attribute.name not in _TYPE_ATTRIBUTES:
        return False
    return attribute.as_int() in {int(half) for half in HALVES}


def _as_float32(tensor: ir.TensorProtocol, name: str | None) -> ir.Tensor[np.ndarray]:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=name)

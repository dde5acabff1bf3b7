"""Reading constants: initializers and Constant nodes, alike and lazily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

#: Before this IR version every initializer had to be listed as an input and was no default.
OVERRIDABLE_SINCE_IR = 4


def is_constant(value: ir.Value, model: ir.Model) -> bool:
    """Say whether `value` is the same in every run, and its data is in the model.

    An initializer that is also a graph input is only a default from IR version 4 on.
    """
    if value.is_initializer():
        overridable = value.is_graph_input() and model.ir_version >= OVERRIDABLE_SINCE_IR
        return value.const_value is not None and not overridable
    return constant_tensor(value) is not None


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the data of an initializer or a Constant node's output, None for other values."""
    if value.is_initializer():
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    if value.const_value is not None:
        return value.const_value
    tensor = tensor_of_constant_node(node)
    value.const_value = tensor
    return tensor


def constant_array(value: ir.Value, limit: int | None = None) -> np.ndarray | None:
    """Return a constant's data, None for other values or above `limit` elements.

    Types that numpy lacks come as their ml_dtypes; strings come as None.
    """
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    if limit is not None and tensor.size > limit:
        return None
    return tensor.numpy()


def tensor_of_constant_node(node: ir.Node) -> ir.TensorProtocol | None:
    """Return what a Constant node makes; None where an attribute of a function decides."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        match name:
            case "value":
                # Not as_tensor(), which asks whether it has all members of a protocol: before
                # Python 3.12 that takes a fifth of the time of a graph of Constant nodes.
                return cast("ir.TensorProtocol", attribute.value)
            case "value_float":
                return ir.tensor(np.array(attribute.as_float(), np.float32))
            case "value_floats":
                return ir.tensor(np.array(attribute.as_floats(), np.float32))
            case "value_int":
                return ir.tensor(np.array(attribute.as_int(), np.int64))
            case "value_ints":
                return ir.tensor(np.array(attribute.as_ints(), np.int64))
            case "value_string":
                return _texts([attribute.as_string()], ())
            case "value_strings":
                texts = attribute.as_strings()
                return _texts(texts, (len(texts),))
    return None


def _texts(texts: Sequence[str], shape: tuple[int, ...]) -> ir.TensorProtocol:
    data = np.array([text.encode() for text in texts], dtype=object).reshape(shape)
    return ir.StringTensor(data, shape=ir.Shape(shape))

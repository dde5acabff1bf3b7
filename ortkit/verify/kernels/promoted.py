"""The body of a kernel with float64 in place of each float type."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortkit.verify.kernels.inputs import is_floating

_EIGHT_BITS = frozenset({TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2})
_FLOATS = frozenset(
    {
        TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E5M2,
    }
)  # fmt: skip


def promoted(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return the body with float64 in place of each float type."""
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.node[:]
    numbers = {item.output[0]: _element_type(item) for item in function.node if _is_number(item)}
    for node in function.node:
        if node.op_type == "QuantizeLinear" and len(node.input) == 3:
            x, scale, zero = node.input
            if numbers.get(zero) in _EIGHT_BITS and scale in numbers:
                result.node.extend(_quantized(x, scale, numbers[zero], node.output[0]))
                continue
        copy = result.node.add()
        copy.CopyFrom(node)
        if node.op_type == "Constant":
            _widen_constant(copy)
        elif node.op_type == "Cast":
            (to,) = (attribute.i for attribute in node.attribute if attribute.name == "to")
            if to in _FLOATS:
                name = f"{node.output[0]}/rounded"
                copy.output[0] = name
                again = helper.make_node("Cast", [name], [node.output[0]], to=TensorProto.DOUBLE)
                result.node.append(again)
    return result


def _widen_constant(node: onnx.NodeProto) -> None:
    (attribute,) = node.attribute
    if attribute.name == "value":
        array = numpy_helper.to_array(attribute.t)
    elif attribute.name in ("value_float", "value_floats"):
        numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        array = np.asarray(numbers, np.float32)
    else:
        return
    if is_floating(array.dtype):
        wide = numpy_helper.from_array(array.astype(np.float64))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", wide))


def _quantized(x: str, scale: str, element_type: int, result: str) -> list[onnx.NodeProto]:
    """Return nodes that round x / scale to an eight-bit float and are float64 again."""
    return [
        helper.make_node("Div", [x, scale], [f"{result}/scaled"]),
        helper.make_node("Cast", [f"{result}/scaled"], [f"{result}/rounded"], to=element_type),
        helper.make_node("Cast", [f"{result}/rounded"], [result], to=TensorProto.DOUBLE),
    ]


def _is_number(node: onnx.NodeProto) -> bool:
    """Return whether a node is a constant tensor without axes."""
    values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
    return node.op_type == "Constant" and bool(values) and not values[0].dims


def _element_type(node: onnx.NodeProto) -> int:
    (attribute,) = node.attribute
    return int(attribute.t.data_type)

"""Operators without a rule of their own: what the onnx package infers, sizes kept apart."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortkit.graph.shapes.rules.call import Call, Fact, UnknownError
from ortkit.graph.symbolic.dims import Dim, Size

_MARK = "ortkit_size_"
#: What the onnx package raises of a node that is not valid.
_INVALID = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    KeyError,
)


def infer_by_schema(call: Call) -> None:
    """Run the operator's own inference of the onnx package on this node alone."""
    node = call.node
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in _attributes(node)):
        raise UnknownError
    try:
        schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=call.version, domain="")
        proto = ir.serde.serialize_node(node)
    except (onnx.defs.SchemaError, ir.serde.SerdeError) as error:
        raise UnknownError from error
    sizes: dict[str, Size] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    _rename(proto)
    for index in range(call.inputs):
        if not call.has(index):
            continue
        fact = call.fact(index)
        if fact.dtype is None:
            raise UnknownError
        types[f"i{index}"] = _type_of(fact, sizes)
        tensor = _tensor_of(fact)
        if tensor is not None:
            data[f"i{index}"] = tensor
    opsets = [onnx.helper.make_opsetid("", call.version)]
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opsets
        )
    except _INVALID as error:
        raise UnknownError from error
    for index in range(call.outputs):
        if f"o{index}" in found:
            _put(call, index, found[f"o{index}"], sizes)


def _attributes(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _rename(proto: onnx.NodeProto) -> None:
    """Give inputs and outputs names of their own: one value may be two inputs."""
    proto.input[:] = [f"i{index}" if name else "" for index, name in enumerate(proto.input)]
    proto.output[:] = [f"o{index}" for index in range(len(proto.output))]


def _type_of(fact: Fact, sizes: dict[str, Size]) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = 0 if fact.dtype is None else fact.dtype.value
    if fact.shape is None:
        return proto
    proto.tensor_type.shape.SetInParent()
    for size in fact.shape:
        dim = proto.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
            continue
        known = [mark for mark, other in sizes.items() if other == size]
        dim.dim_param = known[0] if known else f"{_MARK}{len(sizes)}"
        sizes[dim.dim_param] = size
    return proto


def _tensor_of(fact: Fact) -> onnx.TensorProto | None:
    if fact.elements is None or fact.shape is None or fact.dtype is None:
        return None
    dims = [size for size in fact.shape if isinstance(size, int)]
    values = [element for element in fact.elements if isinstance(element, int | float)]
    if len(dims) != len(fact.shape) or len(values) != len(fact.elements):
        return None
    return onnx.helper.make_tensor("", fact.dtype.value, dims, values)


def _put(call: Call, index: int, proto: onnx.TypeProto, sizes: dict[str, Size]) -> None:
    if not proto.HasField("tensor_type"):
        return
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        call.out(index, dtype=dtype)
        return
    shape: list[Size] = []
    made: dict[str, Dim] = {}
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            shape.append(dim.dim_value)
        elif dim.dim_param in sizes:
            shape.append(sizes[dim.dim_param])
        elif dim.dim_param:
            shape.append(made.setdefault(dim.dim_param, call.fresh()))
        else:
            shape.append(call.fresh())
    call.out(index, dtype=dtype, shape=tuple(shape))

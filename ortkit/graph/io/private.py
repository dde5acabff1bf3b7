"""Copies that share tensors: renaming a value of the copy must not rename the original's tensor.

onnx-ir keeps a value's name in its tensor too, and for tensors that came as protobuf in the
protobuf itself, so sharing the objects would change what the caller passed in.
"""

from __future__ import annotations

import copy

import onnx_ir as ir
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, TensorProto

from ortkit.graph.io.framing import LARGE_BYTES
from ortkit.graph.walk import all_graphs


class SharedProtoTensor(ir.serde.TensorProtoTensor):
    """A tensor in somebody else's protobuf: renamed, it becomes a copy."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self._proto.name)

    @name.setter
    def name(self, value: str | None) -> None:
        if (value or "") == self._proto.name:
            return
        own = TensorProto()
        own.CopyFrom(self._proto)
        own.name = value or ""
        self._proto = own


def private_proto(model: ModelProto) -> tuple[ModelProto, dict[int, TensorProto]]:
    """Return a copy of `model` whose large initializers have no data, and those initializers."""
    shared = {
        index: tensor
        for index, tensor in enumerate(model.graph.initializer)
        if len(tensor.raw_data) >= LARGE_BYTES
    }
    if not shared:
        own = ModelProto()
        own.CopyFrom(model)
        return own, {}
    own = ModelProto()
    _copy_fields(model, own, but="graph")
    _copy_fields(model.graph, own.graph, but="initializer")
    for index, tensor in enumerate(model.graph.initializer):
        if index in shared:
            _copy_fields(tensor, own.graph.initializer.add(), but="raw_data")
        else:
            own.graph.initializer.append(tensor)
    return own, shared


def detach_tensors(model: ir.Model) -> None:
    """Give a cloned model tensor objects of its own, over the same data."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _detached(value.const_value)
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = _detached(attribute.as_tensor())
                    node.attributes[attribute.name] = ir.Attr(
                        attribute.name,
                        attribute.type,
                        tensor,
                        doc_string=attribute.doc_string,
                    )


def _detached(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return SharedProtoTensor(tensor.raw)
    return copy.copy(tensor)


def _copy_fields(
    source: ModelProto | GraphProto | TensorProto,
    target: ModelProto | GraphProto | TensorProto,
    *,
    but: str,
) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, str | bytes | int | float):
            setattr(target, field.name, value)
        elif isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        else:
            getattr(target, field.name).extend(value)

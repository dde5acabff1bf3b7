"""Attributes of ONNX Runtime's nodes as onnx-ir has them."""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_char_p, c_size_t, c_void_p

import onnx_ir as ir

from ortkit.provider.slots import Slots
from ortkit.provider.tensors import tensor_of

#: OrtOpAttrType
_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = range(1, 9)


class AttributeReader:
    """Reads the attributes of nodes, but for graphs."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._needed = c_size_t()
        self._needed_ref = ctypes.byref(self._needed)
        self._room = ctypes.create_string_buffer(4096)

    def read(self, node: int) -> list[ir.Attr]:
        """Return an OrtNode's attributes.

        ONNX Runtime adds those that a model leaves to the operator's defaults. What its
        interface cannot read (sparse tensors, types, lists of tensors) has no value and the
        type UNDEFINED. Text that is not UTF-8 is bytes.
        """
        slots = self._slots
        handles = slots.many(slots.Node_GetNumAttributes, slots.Node_GetAttributes, node)
        found = (self._attribute(handle) for handle in handles if handle is not None)
        return [attribute for attribute in found if attribute is not None]

    def _attribute(self, handle: int) -> ir.Attr | None:
        slots = self._slots
        kind = slots.number(slots.OpAttr_GetType, handle)
        if kind == _GRAPH:
            return None
        name = slots.text(slots.OpAttr_GetName, handle)
        if kind == _INT:
            return ir.AttrInt64(name, struct.unpack("=q", self._bytes(handle, kind))[0])
        if kind == _INTS:
            data = self._bytes(handle, kind)
            return ir.AttrInt64s(name, struct.unpack(f"={len(data) // 8}q", data))
        if kind == _FLOAT:
            return ir.AttrFloat32(name, struct.unpack("=f", self._bytes(handle, kind))[0])
        if kind == _FLOATS:
            data = self._bytes(handle, kind)
            return ir.AttrFloat32s(name, struct.unpack(f"={len(data) // 4}f", data))
        if kind == _STRING:
            return ir.Attr(name, ir.AttributeType.STRING, _text(self._bytes(handle, kind)))
        if kind == _STRINGS:
            # ONNX Runtime ends each with a NUL.
            parts = self._bytes(handle, kind).split(b"\0")[:-1]
            return ir.Attr(name, ir.AttributeType.STRINGS, [_text(part) for part in parts])
        if kind == _TENSOR:
            return ir.AttrTensor(name, self._tensor(handle, name))
        return ir.Attr(name, ir.AttributeType.UNDEFINED, None)

    def _bytes(self, handle: int, kind: int) -> bytes:
        slots = self._slots
        self._needed.value = 0
        room = len(self._room)
        status = slots.ReadOpAttr(handle, kind, self._room, room, self._needed_ref)
        needed = self._needed.value
        if status is not None and needed > room:
            slots.ReleaseStatus(status)
            self._room = ctypes.create_string_buffer(2 * needed)
            status = slots.ReadOpAttr(handle, kind, self._room, 2 * needed, self._needed_ref)
        slots.check(status)
        return ctypes.string_at(self._room, self._needed.value)

    def _tensor(self, handle: int, name: str) -> ir.TensorProtocol:
        """Read a tensor: ONNX Runtime hands out a copy, of which ours is one."""
        slots = self._slots
        value = slots.pointer(slots.OpAttr_GetTensorAttributeAsOrtValue, handle)
        assert value is not None
        try:
            return tensor_of(slots, value, name, None)
        finally:
            slots.ReleaseValue(value)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def subgraphs(slots: Slots, node: int) -> list[tuple[str, int]]:
    """Return the names of the attributes of an OrtNode that are graphs, and the OrtGraphs."""
    count = slots.count(slots.Node_GetNumSubgraphs, node)
    if not count:
        return []
    graphs, names = (c_void_p * count)(), (c_char_p * count)()
    slots.check(slots.Node_GetSubgraphs(node, graphs, count, names))
    return [
        ((name or b"").decode(errors="replace"), graph)
        for name, graph in zip(names[:], graphs[:], strict=True)
        if graph is not None
    ]

"""Types, shapes and tensors of ONNX Runtime as onnx-ir has them; memory is not copied."""

from __future__ import annotations

import ctypes
import gc
import weakref
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.provider.slots import Slots, integers

#: ONNXTensorElementDataType numbers the last ones differently from onnx.TensorProto.
_ELEMENT_TYPES = {
    **{
        int(data_type): data_type
        for data_type in ir.DataType
        if data_type <= ir.DataType.FLOAT4E2M1
    },
    24: ir.DataType.UINT2,
    25: ir.DataType.INT2,
    26: ir.DataType.FLOAT8E8M0,
}
#: Elements smaller than a byte, several of which share one.
PACKED = {
    ir.DataType.UINT2,
    ir.DataType.INT2,
    ir.DataType.UINT4,
    ir.DataType.INT4,
    ir.DataType.FLOAT4E2M1,
}
#: ONNXType
_SEQUENCE, _SPARSE, _OPTIONAL = 2, 5, 6


def element_type(code: int) -> ir.DataType:
    """Return the type behind an ONNXTensorElementDataType; UNDEFINED if onnx-ir has none."""
    return _ELEMENT_TYPES.get(code, ir.DataType.UNDEFINED)


class Memory:
    """Memory of the runtime as numpy sees it; alive as long as any array over it is."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, True),
        }


class Lease:
    """How long the runtime's tensors may be read: as long as one callback runs.

    Arrays over them are counted, so that one which is kept for longer is found rather than read
    after ONNX Runtime has given the memory back.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._lent: list[tuple[str, weakref.ref[Memory]]] = []

    def lend(self, name: str, memory: Memory) -> None:
        """Count an array's memory."""
        self._lent.append((name, weakref.ref(memory)))

    def end(self) -> list[str]:
        """End it; returns the names of tensors of which somebody still holds an array."""
        self.is_over = True
        kept = self._kept()
        for generation in range(3):  # a cycle of the callback's is young: a look at all takes long
            if not kept:
                break
            gc.collect(generation)  # what only a cycle holds is held by nobody
            kept = self._kept()
        self._lent.clear()
        return kept

    def _kept(self) -> list[str]:
        return list(dict.fromkeys(name for name, memory in self._lent if memory() is not None))


class RuntimeTensor(ir.LazyTensor):
    """A tensor in the runtime's memory, read where it lies and only during the callback.

    `numpy()` returns a read-only array over that memory. To keep the numbers, copy them.
    """

    def __init__(
        self, slots: Slots, info: int, name: str, dtype: ir.DataType, shape: ir.Shape, lease: Lease
    ) -> None:
        """Take an OrtValueInfo of an initializer, and its type."""
        super().__init__(self._read, dtype, shape, name=name)
        self._slots = slots
        self._info = info
        self._lease = lease

    def _read(self) -> ir.TensorProtocol:
        if self._lease.is_over:
            raise ModelError(
                f"initializer {self.name!r} is read after the callback that it was shown to",
                fix="copy it in get_capability or compile: np.array(value.const_value.numpy())",
            )
        value = self._slots.pointer(self._slots.ValueInfo_GetInitializerValue, self._info)
        if value is None:
            raise ModelError(f"ONNX Runtime does not show the initializer {self.name!r}")
        return tensor_of(self._slots, value, self.name or "", self._lease)


def tensor_of(slots: Slots, value: int, name: str, lease: Lease | None) -> ir.TensorProtocol:
    """Return an OrtValue's tensor.

    Args:
        slots: The runtime.
        value: Address of an OrtValue that holds a tensor in the host's memory.
        name: What the tensor is called.
        lease: Counts the array; None makes a copy.
    """
    code, dims, rank = c_int(), c_void_p(), c_size_t()
    slots.check(
        slots.GetTensorElementTypeAndShapeDataReference(
            value, ctypes.byref(code), ctypes.byref(dims), ctypes.byref(rank)
        )
    )
    dtype = element_type(code.value)
    count = rank.value
    shape: tuple[int, ...] = ()
    if count and dims.value:
        shape = tuple((c_int64 * count).from_address(dims.value))
    if dtype == ir.DataType.STRING:
        return ir.StringTensor(_strings(slots, value, shape), shape=ir.Shape(shape), name=name)
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"tensor {name!r} has a type that onnx-ir does not know ({code.value})")
    size = slots.count(slots.GetTensorSizeInBytes, value)
    address = slots.pointer(slots.GetTensorData, value) if size else None
    if dtype in PACKED:
        raw = _array(address, np.dtype(np.uint8), (size,), name, lease)
        return ir.PackedTensor(raw, dtype, shape=shape, name=name)
    return ir.Tensor(_array(address, dtype.numpy(), shape, name, lease), dtype, name=name)


def _array(
    address: int | None,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    name: str,
    lease: Lease | None,
) -> npt.NDArray[np.generic]:
    if address is None:
        return np.empty(shape, dtype)
    # numpy's array interface has no names for the types of ml_dtypes: as bytes, then as them.
    plain = dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")
    memory = Memory(address, plain, shape)
    array = np.asarray(memory).view(dtype)
    if lease is None:
        return np.array(array)
    lease.lend(name, memory)
    return array


def _strings(slots: Slots, value: int, shape: tuple[int, ...]) -> list[bytes]:
    count = int(np.prod(shape, dtype=np.int64))
    size = slots.count(slots.GetStringTensorDataLength, value)
    if not count:
        return []
    content, offsets = (c_uint8 * max(size, 1))(), (c_size_t * count)()
    slots.check(slots.GetStringTensorContent(value, content, size, offsets, count))
    whole, starts = bytes(content)[:size], [*offsets, size]
    return [whole[first:last] for first, last in pairwise(starts)]


class TypeReader:
    """Reads types and shapes of values."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._dims = integers(16)()
        self._names = (c_char_p * 16)()

    def read(self, info: int) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """Return what is known of an OrtValueInfo's type and shape.

        The type is None for maps and opaque types, which onnx-ir has none for.
        """
        slots = self._slots
        type_info = slots.pointer(slots.GetValueInfoTypeInfo, info)
        return (None, None) if type_info is None else self._of(type_info)

    def _of(self, type_info: int) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        slots = self._slots
        tensor = slots.pointer(slots.CastTypeInfoToTensorInfo, type_info)
        if tensor is None:
            return self._of_container(type_info), None
        dtype = element_type(slots.number(slots.GetTensorElementType, tensor))
        kind: ir.TypeProtocol = ir.TensorType(dtype)
        if slots.number(slots.GetOnnxTypeFromTypeInfo, type_info) == _SPARSE:
            kind = ir.SparseTensorType(dtype)
        return kind, self._shape(tensor)

    def _shape(self, tensor: int) -> ir.Shape | None:
        slots = self._slots
        if not slots.TensorTypeAndShape_HasShape(tensor):
            return None
        rank = slots.count(slots.GetDimensionsCount, tensor)
        if not rank:
            return ir.Shape(())
        if rank > len(self._dims):
            self._dims, self._names = integers(rank)(), (c_char_p * rank)()
        slots.check(slots.GetDimensions(tensor, self._dims, rank))
        dims = self._dims[:rank]
        if min(dims) >= 0:
            return ir.Shape(dims)
        slots.check(slots.GetSymbolicDimensions(tensor, self._names, rank))
        return ir.Shape(
            [
                size if size >= 0 else (name.decode(errors="replace") if name else None)
                for size, name in zip(dims, self._names[:rank], strict=True)
            ]
        )

    def _of_container(self, type_info: int) -> ir.TypeProtocol | None:
        slots = self._slots
        kind = slots.number(slots.GetOnnxTypeFromTypeInfo, type_info)
        if kind == _SEQUENCE:
            element_info = slots.pointer(slots.CastTypeInfoToSequenceTypeInfo, type_info)
            inner = (
                slots.pointer(slots.GetSequenceElementType, element_info) if element_info else None
            )
            element = self._owned(inner)
            return ir.SequenceType(element) if element is not None else None
        if kind == _OPTIONAL:
            element_info = slots.pointer(slots.CastTypeInfoToOptionalTypeInfo, type_info)
            inner = (
                slots.pointer(slots.GetOptionalContainedTypeInfo, element_info)
                if element_info
                else None
            )
            element = self._owned(inner)
            return ir.OptionalType(element) if element is not None else None
        return None

    def _owned(self, type_info: int | None) -> ir.TypeProtocol | None:
        """Read a type that is ours to release."""
        if type_info is None:
            return None
        try:
            return self._of(type_info)[0]
        finally:
            self._slots.ReleaseTypeInfo(type_info)

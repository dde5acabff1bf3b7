"""Attributes of the node that a kernel is made for, read from its OrtKernelInfo."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_size_t, c_void_p

from ortkit.provider.slots import Slots
from ortkit.provider.tensors import tensor_of


def read_attributes(slots: Slots, info: int, names: Sequence[str]) -> dict[str, object]:
    """Return those attributes that the node has, defaults among them.

    Numbers are int and float, lists of them tuples, text is str, tensors are numpy arrays.
    """
    found = {name: _attribute(slots, info, name.encode()) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _attribute(slots: Slots, info: int, name: bytes) -> object | None:
    """Try one type after another: the interface tells none."""
    integer, number = c_int64(), c_float()
    if _is_done(slots, slots.KernelInfoGetAttribute_int64(info, name, ctypes.byref(integer))):
        return integer.value
    if _is_done(slots, slots.KernelInfoGetAttribute_float(info, name, ctypes.byref(number))):
        return number.value
    size = c_size_t()
    read = slots.KernelInfoGetAttribute_string
    if _is_done(slots, read(info, name, None, ctypes.byref(size))):
        room = ctypes.create_string_buffer(max(size.value, 1))
        slots.check(read(info, name, room, ctypes.byref(size)))
        return room.raw[: max(size.value - 1, 0)].decode(errors="replace")
    for function, kind in (
        (slots.KernelInfoGetAttributeArray_int64, c_int64),
        (slots.KernelInfoGetAttributeArray_float, c_float),
    ):
        if _is_done(slots, function(info, name, None, ctypes.byref(size))):
            numbers = (kind * size.value)()
            slots.check(function(info, name, numbers, ctypes.byref(size)))
            return tuple(numbers)
    return _tensor(slots, info, name)


def _tensor(slots: Slots, info: int, name: bytes) -> object | None:
    allocator, value = c_void_p(), c_void_p()
    slots.check(slots.GetAllocatorWithDefaultOptions(ctypes.byref(allocator)))
    read = slots.KernelInfoGetAttribute_tensor
    if not _is_done(slots, read(info, name, allocator, ctypes.byref(value))) or not value.value:
        return None
    try:
        return tensor_of(slots, value.value, name.decode(), None).numpy()
    finally:
        slots.ReleaseValue(value.value)


def _is_done(slots: Slots, status: int | None) -> bool:
    if status is None:
        return True
    slots.ReleaseStatus(status)
    return False

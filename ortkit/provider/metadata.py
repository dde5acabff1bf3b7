"""A model's metadata, as ONNX Runtime tells a provider."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

from ortkit.provider.slots import Slots


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself; texts are empty where it says nothing."""

    producer: str
    domain: str
    description: str
    version: int
    properties: Mapping[str, str]


def read_metadata(slots: Slots, graph: int) -> ModelMetadata:
    """Read the metadata of the model that an OrtGraph belongs to.

    Raises:
        StatusError: ONNX Runtime refuses the question.
    """
    allocator = c_void_p()
    slots.check(slots.GetAllocatorWithDefaultOptions(ctypes.byref(allocator)))
    handle = slots.pointer(slots.Graph_GetModelMetadata, graph)
    assert handle is not None
    try:
        version = c_int64()
        slots.check(slots.ModelMetadataGetVersion(handle, ctypes.byref(version)))
        return ModelMetadata(
            producer=_text(slots, allocator, slots.ModelMetadataGetProducerName, handle),
            domain=_text(slots, allocator, slots.ModelMetadataGetDomain, handle),
            description=_text(slots, allocator, slots.ModelMetadataGetDescription, handle),
            version=version.value,
            properties=_properties(slots, allocator, handle),
        )
    finally:
        slots.ReleaseModelMetadata(handle)


def _text(
    slots: Slots, allocator: c_void_p, function: Callable[..., Any], *arguments: object
) -> str:
    found = c_void_p()
    slots.check(function(arguments[0], allocator, *arguments[1:], ctypes.byref(found)))
    return _owned(slots, allocator, found.value)


def _owned(slots: Slots, allocator: c_void_p, address: int | None) -> str:
    """Return a text that ONNX Runtime allocated, and give its memory back."""
    if address is None:
        return ""
    text = ctypes.string_at(address).decode(errors="replace")
    slots.check(slots.AllocatorFree(allocator, address))
    return text


def _properties(slots: Slots, allocator: c_void_p, handle: int) -> dict[str, str]:
    keys, count = POINTER(c_void_p)(), c_int64()
    function = slots.ModelMetadataGetCustomMetadataMapKeys
    slots.check(function(handle, allocator, ctypes.byref(keys), ctypes.byref(count)))
    if not keys:
        return {}
    names = [_owned(slots, allocator, keys[index]) for index in range(count.value)]
    slots.check(slots.AllocatorFree(allocator, keys))
    lookup = slots.ModelMetadataLookupCustomMetadataMap
    return {
        name: _text(slots, allocator, lookup, handle, c_char_p(name.encode())) for name in names
    }

"""ONNX Runtime's C interface as Python calls it: functions by their number in one table.

The wheel ships no headers, so the numbers are our own list. They never change: ONNX Runtime
only appends. Everything here exists since version 1.24, API version 24.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

from ortkit.errors import ModelError

_NO_STATUS = object()
_OUT = c_void_p
#: Name -> (number, types of the arguments). Each returns a status, but for those in `_PLAIN`.
_SLOTS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "GetErrorCode": (1, (c_void_p,)),
    "GetErrorMessage": (2, (c_void_p,)),
    "FillStringTensor": (52, (c_void_p, c_void_p, c_size_t)),
    "GetStringTensorDataLength": (53, (c_void_p, _OUT)),
    "GetStringTensorContent": (54, (c_void_p, _OUT, c_size_t, _OUT, c_size_t)),
    "CastTypeInfoToTensorInfo": (55, (c_void_p, _OUT)),
    "GetOnnxTypeFromTypeInfo": (56, (c_void_p, _OUT)),
    "GetTensorElementType": (60, (c_void_p, _OUT)),
    "GetDimensionsCount": (61, (c_void_p, _OUT)),
    "GetDimensions": (62, (c_void_p, _OUT, c_size_t)),
    "GetSymbolicDimensions": (63, (c_void_p, _OUT, c_size_t)),
    "AllocatorFree": (76, (c_void_p, c_void_p)),
    "GetAllocatorWithDefaultOptions": (78, (_OUT,)),
    "KernelInfoGetAttribute_float": (85, (c_void_p, c_char_p, _OUT)),
    "KernelInfoGetAttribute_int64": (86, (c_void_p, c_char_p, _OUT)),
    "KernelInfoGetAttribute_string": (87, (c_void_p, c_char_p, _OUT, _OUT)),
    "ReleaseStatus": (93, (c_void_p,)),
    "ReleaseValue": (96, (c_void_p,)),
    "ReleaseTypeInfo": (98, (c_void_p,)),
    "CastTypeInfoToSequenceTypeInfo": (104, (c_void_p, _OUT)),
    "GetSequenceElementType": (107, (c_void_p, _OUT)),
    "ModelMetadataGetProducerName": (112, (c_void_p, c_void_p, _OUT)),
    "ModelMetadataGetDomain": (114, (c_void_p, c_void_p, _OUT)),
    "ModelMetadataGetDescription": (115, (c_void_p, c_void_p, _OUT)),
    "ModelMetadataLookupCustomMetadataMap": (116, (c_void_p, c_void_p, c_char_p, _OUT)),
    "ModelMetadataGetVersion": (117, (c_void_p, _OUT)),
    "ReleaseModelMetadata": (118, (c_void_p,)),
    "ModelMetadataGetCustomMetadataMapKeys": (123, (c_void_p, c_void_p, _OUT, _OUT)),
    "KernelInfoGetAttributeArray_float": (162, (c_void_p, c_char_p, _OUT, _OUT)),
    "KernelInfoGetAttributeArray_int64": (163, (c_void_p, c_char_p, _OUT, _OUT)),
    "KernelInfo_GetOutputCount": (231, (c_void_p, _OUT)),
    "KernelInfoGetAttribute_tensor": (236, (c_void_p, c_char_p, c_void_p, _OUT)),
    "KernelInfo_GetNodeName": (244, (c_void_p, _OUT, _OUT)),
    "CastTypeInfoToOptionalTypeInfo": (250, (c_void_p, _OUT)),
    "GetOptionalContainedTypeInfo": (251, (c_void_p, _OUT)),
    "ReadOpAttr": (272, (c_void_p, c_int, c_void_p, c_size_t, _OUT)),
    "GetValueInfoName": (289, (c_void_p, _OUT)),
    "GetValueInfoTypeInfo": (290, (c_void_p, _OUT)),
    "GetTensorSizeInBytes": (318, (c_void_p, _OUT)),
    "ValueInfo_GetInitializerValue": (326, (c_void_p, _OUT)),
    "ValueInfo_IsConstantInitializer": (331, (c_void_p, _OUT)),
    "Graph_GetName": (333, (c_void_p, _OUT)),
    "Graph_GetModelPath": (334, (c_void_p, _OUT)),
    "Graph_GetOnnxIRVersion": (335, (c_void_p, _OUT)),
    "Graph_GetNumOperatorSets": (336, (c_void_p, _OUT)),
    "Graph_GetOperatorSets": (337, (c_void_p, _OUT, _OUT, c_size_t)),
    "Graph_GetNumInputs": (338, (c_void_p, _OUT)),
    "Graph_GetInputs": (339, (c_void_p, _OUT, c_size_t)),
    "Graph_GetNumOutputs": (340, (c_void_p, _OUT)),
    "Graph_GetOutputs": (341, (c_void_p, _OUT, c_size_t)),
    "Graph_GetNumInitializers": (342, (c_void_p, _OUT)),
    "Graph_GetInitializers": (343, (c_void_p, _OUT, c_size_t)),
    "Graph_GetNumNodes": (344, (c_void_p, _OUT)),
    "Graph_GetNodes": (345, (c_void_p, _OUT, c_size_t)),
    "Graph_GetParentNode": (346, (c_void_p, _OUT)),
    "Node_GetName": (349, (c_void_p, _OUT)),
    "Node_GetOperatorType": (350, (c_void_p, _OUT)),
    "Node_GetDomain": (351, (c_void_p, _OUT)),
    "Node_GetSinceVersion": (352, (c_void_p, _OUT)),
    "Node_GetNumInputs": (353, (c_void_p, _OUT)),
    "Node_GetInputs": (354, (c_void_p, _OUT, c_size_t)),
    "Node_GetNumOutputs": (355, (c_void_p, _OUT)),
    "Node_GetOutputs": (356, (c_void_p, _OUT, c_size_t)),
    "Node_GetNumAttributes": (359, (c_void_p, _OUT)),
    "Node_GetAttributes": (360, (c_void_p, _OUT, c_size_t)),
    "OpAttr_GetTensorAttributeAsOrtValue": (362, (c_void_p, _OUT)),
    "OpAttr_GetType": (363, (c_void_p, _OUT)),
    "OpAttr_GetName": (364, (c_void_p, _OUT)),
    "Node_GetNumSubgraphs": (365, (c_void_p, _OUT)),
    "Node_GetSubgraphs": (366, (c_void_p, _OUT, c_size_t, _OUT)),
    "Node_GetEpName": (368, (c_void_p, _OUT)),
    "GetRunConfigEntry": (373, (c_void_p, c_char_p)),
    "GetTensorData": (378, (c_void_p, _OUT)),
    "Graph_GetModelMetadata": (387, (c_void_p, _OUT)),
    "TensorTypeAndShape_HasShape": (390, (c_void_p,)),
    "GetTensorElementTypeAndShapeDataReference": (414, (c_void_p, _OUT, _OUT, _OUT)),
}
#: What does not return a status.
_PLAIN: dict[str, Any] = {
    "GetErrorCode": c_int,
    "GetErrorMessage": c_char_p,
    "ReleaseStatus": None,
    "ReleaseValue": None,
    "ReleaseTypeInfo": None,
    "ReleaseModelMetadata": None,
    "GetRunConfigEntry": c_char_p,
    "TensorTypeAndShape_HasShape": c_bool,
}


class StatusError(ModelError):
    """ONNX Runtime refuses a question about a graph; the message is its own."""


class Slots:
    """The functions of one OrtApi table; each is made when it is first asked for.

    They are called with the interpreter's lock held: each takes well under a microsecond, and
    giving the lock away and taking it back would double that.
    """

    def __init__(self, table: int) -> None:
        """Take the address of an OrtApi table, as OrtApiBase.GetApi returns it."""
        self.table = table
        self._out = c_void_p()
        self._text = c_char_p()
        self._number = c_int()
        self._out_ref = ctypes.byref(self._out)
        self._text_ref = ctypes.byref(self._text)
        self._number_ref = ctypes.byref(self._number)
        self._room = (c_void_p * 64)()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = _SLOTS.get(name)
        if found is None:
            raise AttributeError(name)
        number, arguments = found
        result = _PLAIN.get(name, _NO_STATUS)
        is_plain = result is not _NO_STATUS
        prototype = ctypes.PYFUNCTYPE(result if is_plain else c_void_p, *arguments)
        address = ctypes.cast(self.table, POINTER(c_void_p))[number]
        function: Callable[..., Any] = prototype(address)
        setattr(self, name, function)
        return function

    def check(self, status: int | None) -> None:
        """Raise what a status says; None is success.

        Raises:
            StatusError: The status is an error.
        """
        if status is None:
            return
        text = self.GetErrorMessage(status).decode(errors="replace")
        self.ReleaseStatus(status)
        raise StatusError(f"ONNX Runtime: {text}")

    def text(self, function: Callable[..., Any], handle: int) -> str:
        """Return the name or the like that `function` reads from an object."""
        status = function(handle, self._text_ref)
        if status is not None:
            self.check(status)
        return (self._text.value or b"").decode(errors="replace")

    def pointer(self, function: Callable[..., Any], handle: int) -> int | None:
        """Return the object that belongs to another one; None if there is none."""
        self._out.value = 0
        status = function(handle, self._out_ref)
        if status is not None:
            self.check(status)
        return self._out.value

    def count(self, function: Callable[..., Any], handle: int) -> int:
        """Return a size or a 64-bit number."""
        return self.pointer(function, handle) or 0

    def number(self, function: Callable[..., Any], handle: int) -> int:
        """Return an enum or another 32-bit number."""
        status = function(handle, self._number_ref)
        if status is not None:
            self.check(status)
        return self._number.value

    def flag(self, function: Callable[..., Any], handle: int) -> bool:
        """Return whether something is so."""
        self._out.value = 0  # the answer is one byte of it
        status = function(handle, self._out_ref)
        if status is not None:
            self.check(status)
        return bool((self._out.value or 0) & 0xFF)

    def opsets(self, graph: int) -> dict[str, int]:
        """Return an OrtGraph's operator sets: domain -> version."""
        count = self.count(self.Graph_GetNumOperatorSets, graph)
        domains, versions = (c_char_p * count)(), (c_int64 * count)()
        if count:
            self.check(self.Graph_GetOperatorSets(graph, domains, versions, count))
        return {
            (domain or b"").decode(errors="replace"): version
            for domain, version in zip(domains[:], versions[:], strict=True)
        }

    def many(
        self, counter: Callable[..., Any], getter: Callable[..., Any], handle: int
    ) -> list[int | None]:
        """Return what an object holds several of; None stands for what is left out."""
        self._out.value = 0
        status = counter(handle, self._out_ref)
        if status is not None:
            self.check(status)
        count = self._out.value
        if not count:
            return []
        if count > len(self._room):
            self._room = (c_void_p * (2 * count))()
        status = getter(handle, self._room, count)
        if status is not None:
            self.check(status)
        return self._room[:count]


@cache
def integers(count: int) -> Any:
    """Return the ctypes type of an array of `count` int64."""
    return c_int64 * count

"""Tensors and types of a protobuf: is what they declare what they hold?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import onnx
import onnx_ir as ir
from onnx import TensorProto

from ortkit.errors import ModelError

# Fields of a TensorProto that hold values, and which of them holds which type.
_TYPED_FIELDS = (
    "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data",
)  # fmt: skip
_FIELD_OF: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
_PACKED_BITS = (2, 4)
KNOWN_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
# onnx counts dimensions and bytes in int64.
_MOST_BYTES = 2**62


def check_tensor(tensor: TensorProto, where: str, raw_bytes: int | None = None) -> None:
    """Check that a tensor's data has the size that its type and shape ask for.

    Args:
        tensor: The tensor; external data is only checked for form, not opened.
        where: The place for messages.
        raw_bytes: The length of its raw_data if that was left out of `tensor`.

    Raises:
        ModelError: It does not, or the type or shape is no type or shape.
    """
    fault = _fault(tensor, raw_bytes)
    if fault:
        raise ModelError(
            f"tensor {tensor.name!r}: {fault}",
            where=where,
            fix="check that the file is complete, or export the model again",
        )


def check_elem_type(elem_type: int, where: str) -> None:
    """Check that `elem_type` numbers an element type.

    Raises:
        ModelError: It does not.
    """
    if elem_type not in KNOWN_TYPES and elem_type != TensorProto.UNDEFINED:
        raise ModelError(
            f"data type {elem_type} does not exist",
            where=where,
            fix="check that the file is complete, or install a newer onnx",
        )


def external_entries(tensor: TensorProto) -> dict[str, str]:
    """Return a tensor's `external_data` as a dict."""
    return {entry.key: entry.value for entry in tensor.external_data}


def tensors_of(node: onnx.NodeProto) -> Iterator[TensorProto]:
    """Yield the tensors in a node's own attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        elif attribute.type == onnx.AttributeProto.TENSORS:
            yield from attribute.tensors


def _fault(tensor: TensorProto, raw_bytes: int | None) -> str:
    if tensor.data_type not in KNOWN_TYPES:
        return f"data type {tensor.data_type} does not exist"
    dims = list(tensor.dims)
    if any(dim < 0 for dim in dims):
        return f"shape {dims} has a negative size"
    dtype = ir.DataType(tensor.data_type)
    size = prod(dims)
    if size > _MOST_BYTES:
        return f"shape {dims} is larger than any file"
    fields = [name for name in _TYPED_FIELDS if len(getattr(tensor, name))]
    has_raw = raw_bytes is not None or tensor.HasField("raw_data")
    if tensor.data_location == TensorProto.EXTERNAL:
        if fields or has_raw:
            return "it has external data and data of its own"
        return _external_fault(tensor, dtype, size)
    if has_raw:
        given = len(tensor.raw_data) if raw_bytes is None else raw_bytes
        return _raw_fault(dtype, dims, size, given, fields)
    return _typed_fault(tensor, dtype, dims, size, fields)


def _external_fault(tensor: TensorProto, dtype: ir.DataType, size: int) -> str:
    entries = external_entries(tensor)
    if dtype == ir.DataType.STRING:
        return "strings cannot be external data"
    if not entries.get("location"):
        return "its external data has no location"
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        # int() would also take signs, blanks and underscores.
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            return f"{key} {text!r} of its external data is not a number of bytes"
    want = bytes_of(dtype, size)
    if "length" in entries and int(entries["length"]) != want:
        given = entries["length"]
        return f"its external data has {given} bytes, and type and shape ask for {want}"
    return ""


def _raw_fault(
    dtype: ir.DataType, dims: list[int], size: int, given: int, fields: list[str]
) -> str:
    if dtype == ir.DataType.STRING:
        return "strings cannot be raw data"
    if fields:
        return f"it has raw_data and {fields[0]}"
    want = bytes_of(dtype, size)
    if given != want:
        return f"it holds {given} bytes, and {dtype.name} {dims} asks for {want}"
    return ""


def _typed_fault(
    tensor: TensorProto, dtype: ir.DataType, dims: list[int], size: int, fields: list[str]
) -> str:
    field = _FIELD_OF.get(tensor.data_type, "int32_data")
    if fields and fields != [field]:
        return f"{dtype.name} values belong into {field}, not {fields[0]}"
    want = size
    if tensor.data_type in _COMPLEX:
        want = 2 * size
    elif dtype != ir.DataType.STRING and dtype.bitwidth in _PACKED_BITS:
        want = bytes_of(dtype, size)
    given = len(getattr(tensor, field))
    if given != want:
        return f"it holds {given} values in {field}, and {dtype.name} {dims} asks for {want}"
    return ""


def bytes_of(dtype: ir.DataType, size: int) -> int:
    """Return how many bytes `size` elements take as raw data: packed if smaller than a byte.

    Strings have no raw form: 0.
    """
    if dtype == ir.DataType.STRING:
        return 0
    return (size * dtype.bitwidth + 7) // 8

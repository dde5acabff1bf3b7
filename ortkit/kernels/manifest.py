"""The C source of a kernel library's manifest: what custom_ops/native/manifest.h declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortkit.errors import InternalError
from ortkit.kernels.backend import Kernel, Refused
from ortkit.kernels.cpu import LEVELS
from ortkit.kernels.layout import Axis, canonical_layout
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec

MANIFEST_VERSION = 1

# numpy's name -> (ONNX TensorProto.DataType, bytes).
_ELEMENTS: dict[str, tuple[int, int]] = {
    "float32": (1, 4),
    "uint8": (2, 1),
    "int8": (3, 1),
    "uint16": (4, 2),
    "int16": (5, 2),
    "int32": (6, 4),
    "int64": (7, 8),
    "bool": (9, 1),
    "float16": (10, 2),
    "float64": (11, 8),
    "uint32": (12, 4),
    "uint64": (13, 8),
    "bfloat16": (16, 2),
}


def manifest_source(ops: Sequence[tuple[RegionSignature, Kernel]], level: str) -> str:
    """Return the C source for `ops`, in the order of their op types.

    Raises:
        InternalError: A region has no canonical layout, so no kernel can have been made for it.
    """
    ordered = sorted(ops, key=lambda op: op[0].op_type)
    parts = ['#include "manifest.h"', ""]
    for symbol, count in sorted({(k.symbol, len(s.inputs) + len(s.outputs)) for s, k in ordered}):
        parts.append(_call_source(symbol, count))
    for number, (signature, kernel) in enumerate(ordered):
        parts.append(_op_source(number, signature, kernel))
    entries = ",\n".join(f"  OP_{number}" for number in range(len(ordered)))
    parts.append(f"static const OrtkitOp ops[] = {{\n{entries}\n}};")
    parts.append(
        "const OrtkitManifest ortkit_manifest = {\n"
        f"  {MANIFEST_VERSION}, (OrtkitCpu){LEVELS[level]}, {_text(DOMAIN)}, {len(ordered)}, ops\n"
        "};"
    )
    return "\n".join(parts) + "\n"


def _call_source(symbol: str, tensors: int) -> str:
    """Return the adapter from the shim's array of pointers to the kernel's parameters."""
    pointers = "void*, " * tensors
    arguments = "".join(f"data[{index}], " for index in range(tensors))
    return (
        f"int32_t {symbol}({pointers}int64_t, int64_t);\n"
        f"static int32_t call_{symbol}(char* const* data, int64_t rows, int64_t columns) {{\n"
        f"  return {symbol}({arguments}rows, columns);\n}}\n"
    )


def _op_source(number: int, signature: RegionSignature, kernel: Kernel) -> str:
    layout = canonical_layout(signature)
    if isinstance(layout, Refused):
        raise InternalError(f"region {signature.op_type} has no layout: {layout.reason}")
    tensors = (*signature.inputs, *signature.outputs)
    symbols = _ordered_symbols(tensors)
    name = f"op{number}"
    lines = [f"static const char* const {name}_symbols[] = {{{_list(map(_text, symbols))}}};"]
    for index, tensor in enumerate(tensors):
        dims = (d if isinstance(d, int) else -1 - symbols.index(d) for d in tensor.shape)
        lines.append(f"static const int64_t {name}_dims{index}[] = {{{_list(dims)}}};")
    rows = (_tensor_source(t, f"{name}_dims{i}") for i, t in enumerate(tensors))
    lines.append(f"static const OrtkitTensor {name}_tensors[] = {{{', '.join(rows)}}};")
    for index, axis in enumerate(layout.axes):
        numbers = _list(symbols.index(symbol) for symbol in axis.symbols)
        lines.append(f"static const int32_t {name}_axis{index}[] = {{{numbers}}};")
    axes = ", ".join(_axis_source(a, f"{name}_axis{i}") for i, a in enumerate(layout.axes))
    lines.append(f"static const OrtkitAxis {name}_axes[] = {{{axes}}};")
    moves = _list(int(has) for row in layout.moves for has in row)
    lines.append(f"static const uint8_t {name}_moves[] = {{{moves}}};")
    moved = zip(tensors, layout.moves, strict=True)
    bytes_per_point = sum(_ELEMENTS[t.dtype][1] for t, row in moved if row[-1])
    lines.append(
        f"#define OP_{number} {{{_text(signature.op_type)}, {_text(signature.key)}, "
        f"{len(symbols)}, {name}_symbols, {len(signature.inputs)}, {len(signature.outputs)}, "
        f"{name}_tensors, {len(layout.axes)}, {name}_axes, {name}_moves, "
        f"{bytes_per_point}, {kernel.flops_per_point}, call_{kernel.symbol}}}\n"
    )
    return "\n".join(lines)


def _ordered_symbols(tensors: tuple[TensorSpec, ...]) -> list[str]:
    found = (dim for tensor in tensors for dim in tensor.shape if isinstance(dim, str))
    return list(dict.fromkeys(found))


def _tensor_source(tensor: TensorSpec, dims: str) -> str:
    element, size = _ELEMENTS[tensor.dtype]
    return f"{{{_text(tensor.name)}, {element}, {size}, {len(tensor.shape)}, {dims}}}"


def _axis_source(axis: Axis, symbols: str) -> str:
    return f"{{{axis.size}, {len(axis.symbols)}, {symbols}}}"


def _list(items: Iterable[object]) -> str:
    # C has no empty arrays; an unused 0 stands for one.
    return ", ".join(map(str, items)) or "0"


def _text(text: str) -> str:
    """Return a C string literal; names come from models and may hold anything."""
    safe = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;/+*()[]<>=")
    return (
        '"'
        + "".join(chr(byte) if byte in safe else f"\\{byte:03o}" for byte in text.encode())
        + '"'
    )

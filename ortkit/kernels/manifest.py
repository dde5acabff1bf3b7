"""The C source of a kernel library's manifest: what custom_ops/native/manifest.h declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ortkit.errors import InternalError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.cpu import LEVELS
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product, symbols_of

MANIFEST_VERSION = 3

# Pairs of an input and an output, by position.
Pairs: TypeAlias = tuple[tuple[int, int], ...]

# numpy's name -> ONNX TensorProto.DataType.
_ELEMENT_TYPES: dict[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}


def manifest_source(ops: Sequence[tuple[RegionSignature, Kernel]], level: str) -> str:
    """Return the C source for `ops`, in the order of their op types.

    Raises:
        InternalError: A kernel wants to share memory between tensors that differ.
    """
    ordered = sorted(ops, key=lambda op: op[0].op_type)
    parts = ['#include "manifest.h"', ""]
    for signature, kernel in {kernel.symbol: (s, kernel) for s, kernel in ordered}.values():
        tensors = (*signature.inputs, *signature.outputs)
        parts.append(_call_source(kernel.symbol, len(tensors), len(symbols_of(tensors))))
    answers = {kernel.launch.inplace for _, kernel in ordered} - {()}
    parts += [_pairs_source(pairs) for pairs in sorted(answers)]
    for number, (signature, kernel) in enumerate(ordered):
        parts.append(_op_source(number, signature, kernel))
    entries = ",\n".join(f"  OP_{number}" for number in range(len(ordered)))
    parts.append(f"static const OrtkitOp ops[] = {{\n{entries}\n}};")
    parts.append(f"static OrtkitRoom rooms[ORTKIT_MAX_RUNTIMES * {len(ordered)}];")
    parts.append(
        "const OrtkitManifest ortkit_manifest = {\n"
        f"  {MANIFEST_VERSION}, (OrtkitCpu){LEVELS[level]}, {_text(DOMAIN)}, {len(ordered)}, "
        "ops, rooms\n"
        "};"
    )
    return "\n".join(parts) + "\n"


def _call_source(symbol: str, tensors: int, sizes: int) -> str:
    """Return the adapter from the shim's arrays to the kernel's parameters."""
    parameters = "void*, " * tensors + "int64_t, " * sizes
    arguments = "".join(f"data[{index}], " for index in range(tensors))
    arguments += "".join(f"sizes[{index}], " for index in range(sizes))
    return (
        f"int32_t {symbol}({parameters}int64_t, int64_t);\n"
        f"static int32_t call_{symbol}(char* const* data, const int64_t* sizes, int64_t begin, "
        f"int64_t end) {{\n  (void)sizes;\n  return {symbol}({arguments}begin, end);\n}}\n"
    )


def _pairs_name(pairs: Pairs) -> str:
    return "_".join(["pairs", *(f"{i}to{o}" for i, o in pairs)]) if pairs else "NULL"


def _pairs_source(pairs: Pairs) -> str:
    """Return the function that answers which tensors may share memory.

    One for each distinct answer: it is not told which op it is asked about.
    """
    return (
        f"static size_t {_pairs_name(pairs)}(int32_t** inputs, int32_t** outputs) {{\n"
        f"  static int32_t from[] = {{{_list(i for i, _ in pairs)}}};\n"
        f"  static int32_t to[] = {{{_list(o for _, o in pairs)}}};\n"
        f"  *inputs = from;\n  *outputs = to;\n  return {len(pairs)};\n}}\n"
    )


def _check_pairs(signature: RegionSignature, pairs: Pairs) -> None:
    """Raise unless each pair takes the same memory, and no tensor stands in two."""
    for source, target in pairs:
        one, other = signature.inputs[source], signature.outputs[target]
        if one.dtype != other.dtype or _elements(one) != _elements(other):
            raise InternalError(
                f"region {signature.op_type}: {one.name!r} and {other.name!r} differ in type or "
                "size and cannot share memory"
            )
    for side in zip(*pairs, strict=True):
        if len(set(side)) < len(side):
            raise InternalError(f"region {signature.op_type}: one tensor shares memory with two")


def _elements(tensor: TensorSpec) -> Extent:
    return product(extent_of(dim) for dim in tensor.shape)


def _op_source(number: int, signature: RegionSignature, kernel: Kernel) -> str:
    tensors = (*signature.inputs, *signature.outputs)
    symbols, launch = symbols_of(tensors), kernel.launch
    _check_pairs(signature, launch.inplace)
    name = f"op{number}"
    lines = [f"static const char* const {name}_symbols[] = {{{_list(map(_text, symbols))}}};"]
    for index, tensor in enumerate(tensors):
        dims = [extent_of(dim) for dim in tensor.shape]
        lines += _extents_source(f"{name}_dims{index}", dims, symbols)
    rows = (_tensor_source(t, f"{name}_dims{i}") for i, t in enumerate(tensors))
    lines.append(f"static const OrtkitTensor {name}_tensors[] = {{{', '.join(rows)}}};")
    places = [f"s{index}" for index in range(len(symbols))]
    lines += _extents_source(f"{name}_units", launch.units, places)
    lines += _extents_source(f"{name}_points", [launch.points], places)
    lines.append(
        f"#define OP_{number} {{{_text(signature.op_type)}, {_text(signature.key)}, "
        f"{len(symbols)}, {name}_symbols, {len(signature.inputs)}, {len(signature.outputs)}, "
        f"{name}_tensors, {len(launch.units)}, {name}_units, "
        f"{_extent_source(f'{name}_points', 0, launch.points)}, "
        f"{launch.picoseconds_per_point}, {_pairs_name(launch.inplace)}, "
        f"call_{kernel.symbol}}}\n"
    )
    return "\n".join(lines)


def _extents_source(name: str, extents: Sequence[Extent], symbols: Sequence[str]) -> list[str]:
    """Return the arrays of sizes `name` and, for each, of its symbols."""
    lines = []
    for index, extent in enumerate(extents):
        numbers = _list(symbols.index(symbol) for symbol in extent.symbols)
        lines.append(f"static const int32_t {name}_{index}[] = {{{numbers}}};")
    entries = ", ".join(
        _extent_source(name, index, extent) for index, extent in enumerate(extents)
    )
    lines.append(f"static const OrtkitExtent {name}[] = {{{entries or '{0, 0, 0}'}}};")
    return lines


def _extent_source(name: str, index: int, extent: Extent) -> str:
    return f"{{{extent.factor}, {len(extent.symbols)}, {name}_{index}}}"


def _tensor_source(tensor: TensorSpec, dims: str) -> str:
    return f"{{{_text(tensor.name)}, {_ELEMENT_TYPES[tensor.dtype]}, {len(tensor.shape)}, {dims}}}"


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

"""The C source of a kernel library's manifest: what custom_ops/native/manifest.h declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ortkit.errors import InternalError
from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.counted_sizes import counted_size
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.link.csource import c_extent, c_extents, c_list, c_text
from ortkit.kernels.link.manifest_cuda import ImageFile, images_source, kernel_source
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, product, symbols_of
from ortkit.kernels.value_sizes import value_sizes
from ortkit.targets.cpu import LEVELS

MANIFEST_VERSION = 11

# Pairs of an input and an output, by position.
Pairs: TypeAlias = tuple[tuple[int, int], ...]

#: numpy's name -> ONNX TensorProto.DataType.
ELEMENT_TYPES: dict[str, int] = {
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
    "float8_e4m3fn": 17,
}


# Of an op without a kernel for the CPU.
_NO_LAUNCH = Launch((), ONE, 0)


@dataclass(frozen=True)
class LibraryOp:
    """An op of a library: what it computes, and its kernel for the CPU, for CUDA, or both."""

    signature: RegionSignature
    cpu: Kernel | None = None
    cuda: CudaKernel | None = None


def manifest_source(
    ops: Sequence[LibraryOp], level: str, images: Mapping[Path, ImageFile] | None = None
) -> str:
    """Return the C source for `ops`, in the order of their op types.

    Args:
        ops: Each with a kernel at least.
        level: What the kernels for the CPU ask of it.
        images: The code of the kernels for CUDA; see `image_files`.

    Raises:
        InternalError: A kernel wants to share memory between tensors that differ, or exceeds
            what custom_ops/native/manifest.h has room for.
    """
    images = images or {}
    ordered = sorted(ops, key=lambda op: op.signature.op_type)
    parts = ['#include "manifest.h"', "", *images_source(images.values())]
    for op in {op.cpu.symbol: op for op in ordered if op.cpu is not None}.values():
        assert op.cpu is not None
        tensors = (*op.signature.inputs, *op.signature.outputs)
        sizes, refuses = len(symbols_of(tensors)), bool(value_sizes(op.signature))
        parts.append(call_source(op.cpu.symbol, len(tensors), sizes, refuses=refuses))
    answers = {_launch(op).inplace for op in ordered} - {()}
    parts += [pairs_source(pairs) for pairs in sorted(answers)]
    for number, op in enumerate(ordered):
        parts.append(op_source(number, op, images))
    entries = ",\n".join(f"  OP_{number}" for number in range(len(ordered)))
    parts.append(f"static const OrtkitOp ops[] = {{\n{entries}\n}};")
    kernels = sum((op.cpu is not None) + (op.cuda is not None) for op in ordered)
    parts.append(f"static OrtkitStorage storage[ORTKIT_MAX_RUNTIMES * {kernels}];")
    cuda = "&ortkit_cuda" if any(op.cuda for op in ordered) else "NULL"
    parts.append(
        "const OrtkitManifest ortkit_manifest = {\n"
        f"  {MANIFEST_VERSION}, (OrtkitCpu){LEVELS[level]}, {c_text(DOMAIN)}, {len(ordered)}, "
        f"ops, storage, {cuda}\n"
        "};"
    )
    return "\n".join(parts) + "\n"


def call_source(symbol: str, tensors: int, sizes: int, *, refuses: bool = False) -> str:
    """Return the adapter from the shim's arrays to the kernel's parameters.

    Args:
        symbol: The kernel's.
        tensors: How many it has.
        sizes: Likewise.
        refuses: Whether it writes a code for a run that it refuses.
    """
    parameters = "void*, " * tensors + "int64_t, " * sizes
    arguments = "".join(f"data[{index}], " for index in range(tensors))
    arguments += "".join(f"sizes[{index}], " for index in range(sizes))
    body = f"return {symbol}({arguments}begin, end);"
    if refuses:
        body = f"int32_t code = 0;\n  {symbol}({arguments}begin, end, &code);\n  return code;"
    return (
        f"int32_t {symbol}({parameters}int64_t, int64_t{', int32_t*' if refuses else ''});\n"
        f"static int32_t call_{symbol}(char* const* data, const int64_t* sizes, int64_t begin, "
        f"int64_t end) {{\n  (void)sizes;\n  {body}\n}}\n"
    )


def pairs_name(pairs: Pairs) -> str:
    """Return the name of the function that answers `pairs`."""
    return "_".join(["pairs", *(f"{i}to{o}" for i, o in pairs)]) if pairs else "NULL"


def pairs_source(pairs: Pairs) -> str:
    """Return the function that answers which tensors may share memory.

    One for each distinct answer: it does not get the op that it is asked about.
    """
    return (
        f"static size_t {pairs_name(pairs)}(int32_t** inputs, int32_t** outputs) {{\n"
        f"  static int32_t from[] = {{{c_list(i for i, _ in pairs)}}};\n"
        f"  static int32_t to[] = {{{c_list(o for _, o in pairs)}}};\n"
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


def _launch(op: LibraryOp) -> Launch:
    return op.cpu.launch if op.cpu is not None else _NO_LAUNCH


def op_source(
    number: int, op: LibraryOp, images: Mapping[Path, ImageFile], label: str = ""
) -> str:
    """Return the lines that define an op as OP_n.

    Args:
        number: One that no other op has.
        op: With its kernels.
        images: The code of the kernels for CUDA.
        label: What messages call it, if not by its op type.
    """
    signature, launch = op.signature, _launch(op)
    tensors = (*signature.inputs, *signature.outputs)
    symbols = symbols_of(tensors)
    _check_pairs(signature, launch.inplace)
    name = f"op{number}"
    lines = [f"static const char* const {name}_symbols[] = {{{c_list(map(c_text, symbols))}}};"]
    for index, tensor in enumerate(tensors):
        dims = [extent_of(dim) for dim in tensor.shape]
        lines += c_extents(f"{name}_dims{index}", dims, symbols)
    rows = (_tensor_source(t, f"{name}_dims{i}") for i, t in enumerate(tensors))
    lines.append(f"static const OrtkitTensor {name}_tensors[] = {{{', '.join(rows)}}};")
    by_value = value_sizes(signature)
    if by_value:
        lines += c_extents(f"{name}_least", [item.least for item in by_value], symbols)
        sizes = (
            f"{{{symbols.index(value_size.symbol)}, "
            f"{c_extent(f'{name}_least', number, value_size.least)}, "
            f"{value_size.tensor}}}"
            for number, value_size in enumerate(by_value)
        )
        lines.append(f"static const OrtkitValueSize {name}_values[] = {{{', '.join(sizes)}}};")
    size_names = [f"s{index}" for index in range(len(symbols))]
    lines += c_extents(f"{name}_units", launch.units, size_names)
    lines += c_extents(f"{name}_points", [launch.points], size_names)
    if op.cuda is not None:
        lines += kernel_source(f"{name}_cuda", op.cuda, len(tensors), size_names, images)
    lines.append(
        f"#define OP_{number} {{{c_text(label or signature.op_type)}, {c_text(signature.key)}, "
        f"{len(symbols)}, {name}_symbols, {len(signature.inputs)}, {len(signature.outputs)}, "
        f"{name}_tensors, {len(by_value)}, {f'{name}_values' if by_value else 'NULL'}, "
        f"{len(launch.units)}, {name}_units, "
        f"{c_extent(f'{name}_points', 0, launch.points)}, "
        f"{launch.picoseconds_per_point}, {launch.shared_nanoseconds}, "
        f"{launch.slice_picoseconds}, {int(launch.streams_constants)}, "
        f"{int(counted_size(signature) is not None)}, "
        f"{pairs_name(launch.inplace)}, "
        f"{'NULL' if op.cpu is None else f'call_{op.cpu.symbol}'}, "
        f"{'NULL' if op.cuda is None else f'&{name}_cuda'}}}\n"
    )
    return "\n".join(lines)


def _tensor_source(tensor: TensorSpec, dims: str) -> str:
    return f"{{{c_text(tensor.name)}, {ELEMENT_TYPES[tensor.dtype]}, {len(tensor.shape)}, {dims}}}"

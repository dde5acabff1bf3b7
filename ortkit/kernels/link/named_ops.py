"""The C source of a library of ops under names of their users': what names.h declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ortkit.errors import InternalError
from ortkit.kernels.backend import Kernel, PackedInput
from ortkit.kernels.cuda import Condition, CudaKernel
from ortkit.kernels.link.csource import c_extent, c_extents, c_list, c_text
from ortkit.kernels.link.manifest import (
    ELEMENT_TYPES,
    MANIFEST_VERSION,
    LibraryOp,
    call_source,
    op_source,
    pairs_name,
    pairs_source,
)
from ortkit.kernels.link.manifest_cuda import ImageFile, images_source
from ortkit.kernels.region.dtypes import bits_of
from ortkit.kernels.signature import DOMAIN, RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.targets.cpu import LEVELS

NAMES_VERSION = 3
#: The bounds of custom_ops/native/names.h.
MOST_ATTRIBUTES, MOST_INPUTS, MOST_PACKS = 32, 64, 8

REQUIRED, OPTIONAL, VARIADIC = 0, 1, 2


@dataclass(frozen=True)
class NamedAttribute:
    """An attribute that kernels take as an input, or are built for a value of."""

    name: str
    is_float: bool
    default: float | int | None
    """None: a node must have it."""


@dataclass(frozen=True)
class NamedKernel:
    """A kernel, and the nodes that it is for."""

    signature: RegionSignature
    kernel: Kernel | CudaKernel
    node_inputs: tuple[int, ...]
    """Of each of its inputs the node's, or -1 - the attribute that it is the value of."""
    wildcard_axes: tuple[int | None, ...]
    """Of each tensor the axis that stands for any number of the node's."""
    is_present: tuple[bool, ...]
    """Which of the node's inputs there are."""
    fixed: Mapping[int, float | int] = field(default_factory=dict)
    """Attributes by number that must have these values."""
    conditions: tuple[Condition, ...] = ()
    """What must hold of the sizes, by the signature's names."""


@dataclass(frozen=True)
class NamedOp:
    """An op with one set of element types."""

    domain: str
    name: str
    version: int
    inputs: tuple[tuple[str, int], ...]
    """The element type and `REQUIRED`, `OPTIONAL` or `VARIADIC` of each."""
    outputs: tuple[str, ...]
    attributes: tuple[NamedAttribute, ...]
    kernels: tuple[NamedKernel, ...]
    """The first that fits a node runs it, those for a device it has; the last one needs the
    fewest inputs: shapes are inferred from it."""

    @property
    def id(self) -> str:
        """`mydomain::Name`."""
        return f"{self.domain}::{self.name}"

    @property
    def packs(self) -> dict[tuple[int, str], PackedInput]:
        """What packs the node's inputs for its kernels, by input and function."""
        return {
            (kernel.node_inputs[pack.input], pack.kernel.symbol): pack
            for kernel in self.kernels
            if (cpu := _cpu(kernel))
            for pack in cpu.packs
        }


def names_source(
    ops: Sequence[NamedOp], level: str, images: Mapping[Path, ImageFile] | None = None
) -> str:
    """Return the C source for `ops`, manifest included.

    Args:
        ops: Each with a kernel at least.
        level: What the kernels ask of the processor.
        images: The code of the kernels for CUDA; see `image_files`.

    Raises:
        InternalError: An op exceeds what custom_ops/native/names.h has room for.
    """
    images = images or {}
    ordered = sorted(ops, key=lambda op: (op.domain, op.name, op.inputs, op.outputs))
    kernels = [kernel for op in ordered for kernel in op.kernels]
    parts = ['#include "manifest.h"', '#include "names.h"', ""]
    parts += images_source(images.values())
    for symbol, named_kernel in {cpu.symbol: one for one in kernels if (cpu := _cpu(one))}.items():
        tensors = (*named_kernel.signature.inputs, *named_kernel.signature.outputs)
        parts.append(call_source(symbol, len(tensors), len(symbols_of(tensors))))
    packers = {pack.kernel.symbol: pack for op in ordered for pack in op.packs.values()}
    parts += [
        call_source(symbol, 2, len(symbols_of(pack.signature.inputs)))
        for symbol, pack in packers.items()
    ]
    answers = {cpu.launch.inplace for item in kernels if (cpu := _cpu(item))}
    answers |= {_inplace(op) for op in ordered}
    parts += [pairs_source(pairs) for pairs in sorted(answers - {()})]
    number = 0
    entries = []
    for index, op in enumerate(ordered):
        _check(op)
        first = number
        for named_kernel in op.kernels:
            cuda = named_kernel.kernel if isinstance(named_kernel.kernel, CudaKernel) else None
            made = LibraryOp(named_kernel.signature, _cpu(named_kernel), cuda)
            parts.append(op_source(number, made, images, op.id))
            parts += _kernel_source(number, named_kernel, list(op.packs))
            number += 1
        for at, ((input_of_node, _), pack) in enumerate(op.packs.items()):
            made = LibraryOp(pack.signature, pack.kernel)
            parts.append(op_source(number, made, images, op.id))
            parts += _pack_source(f"named{index}_pack{at}", number, input_of_node, pack)
            number += 1
        parts += _named_source(index, op, first)
        entries.append(f"  NAMED_{index}")
    listed = ",\n".join(entries)
    parts.append(f"static const OrtkitNamedOp named[] = {{\n{listed}\n}};")
    parts.append(f"static OrtkitStorage storage[ORTKIT_MAX_RUNTIMES * 2 * {len(ordered)}];")
    has_cuda = any(isinstance(one.kernel, CudaKernel) for one in kernels)
    names_cuda, cuda_part = ("&ortkit_names_cuda", "&ortkit_cuda") if has_cuda else ("NULL",) * 2
    parts.append(
        f"const OrtkitNames ortkit_names = {{{NAMES_VERSION}, {len(ordered)}, named, storage, "
        f"{names_cuda}}};"
    )
    parts.append(
        "const OrtkitManifest ortkit_manifest = {\n"
        f"  {MANIFEST_VERSION}, (OrtkitCpu){LEVELS[level]}, {c_text(DOMAIN)}, "
        f"0, NULL, NULL, {cuda_part}\n}};"
    )
    return "\n".join(parts) + "\n"


def _cpu(named_kernel: NamedKernel) -> Kernel | None:
    return named_kernel.kernel if isinstance(named_kernel.kernel, Kernel) else None


def _check(op: NamedOp) -> None:
    if len(op.attributes) > MOST_ATTRIBUTES or not op.kernels:
        raise InternalError(f"{op.id} has {len(op.attributes)} attributes, or no kernel")
    if len(op.packs) > MOST_PACKS:
        raise InternalError(f"{op.id} has {len(op.packs)} packed inputs, at most {MOST_PACKS}")
    if any(len(kernel.is_present) > MOST_INPUTS for kernel in op.kernels):
        raise InternalError(f"{op.id} has a kernel of more than {MOST_INPUTS} inputs")


def _inplace(op: NamedOp) -> tuple[tuple[int, int], ...]:
    """Return the node's pairs of input and output that every kernel lets share memory."""
    if any(kind == VARIADIC for _, kind in op.inputs):
        return ()
    found = [
        {(kernel.node_inputs[i], o) for i, o in cpu.launch.inplace if kernel.node_inputs[i] >= 0}
        for kernel in op.kernels
        if (cpu := _cpu(kernel))
    ]
    return tuple(sorted(set.intersection(*found))) if found else ()


def _pack_source(name: str, number: int, position: int, pack: PackedInput) -> list[str]:
    """Return the lines with the arrays of what packs an input, and itself as a macro."""
    node_inputs = [f"s{index}" for index in range(len(symbols_of(pack.signature.inputs)))]
    lines = c_extents(f"{name}_sizes", [extent for extent, _ in pack.shape], node_inputs)
    dims = ", ".join(
        f"{{{c_extent(f'{name}_sizes', index, extent)}, {divisor}}}"
        for index, (extent, divisor) in enumerate(pack.shape)
    )
    return [
        *lines,
        f"static const OrtkitOp {name}_op = OP_{number};",
        f"static const OrtkitCeilDiv {name}_dims[] = {{{dims}}};",
        f"#define {name.upper()} {{&{name}_op, {position}, {len(pack.shape)}, {name}_dims, "
        f"{bits_of(pack.dtype) // 8}}}\n",
    ]


def _kernel_source(
    number: int, named_kernel: NamedKernel, packs: Sequence[tuple[int, str]]
) -> list[str]:
    """Return the lines with the arrays of a choice, and itself as CHOICE_n."""
    name = f"choice{number}"
    tensors = (*named_kernel.signature.inputs, *named_kernel.signature.outputs)
    extents = [each.extent for each in named_kernel.conditions]
    lines = c_extents(f"{name}_if", extents, symbols_of(tensors))
    conditions = ", ".join(
        f"{{{c_extent(f'{name}_if', index, each.extent)}, {each.divisible_by}, "
        f"{'INT64_MAX' if each.at_most is None else each.at_most}}}"
        for index, each in enumerate(named_kernel.conditions)
    )
    if conditions:
        lines.append(f"static const OrtkitCondition {name}_conditions[] = {{{conditions}}};")
    wildcard_axes = [0 if axis is None else axis + 1 for axis in named_kernel.wildcard_axes]
    fixed = ", ".join(f"{{{at}, {_number(value)}}}" for at, value in named_kernel.fixed.items())
    cpu = _cpu(named_kernel)
    packed = [-1] * len(named_kernel.signature.inputs)
    for pack in () if cpu is None else cpu.packs:
        packed[pack.input] = packs.index(
            (named_kernel.node_inputs[pack.input], pack.kernel.symbol)
        )
    packs_name = f"{name}_packs" if max(packed, default=-1) >= 0 else "NULL"
    if packs_name != "NULL":
        lines.append(f"static const int32_t {packs_name}[] = {{{c_list(packed)}}};")
    return [
        *lines,
        f"static const OrtkitOp {name}_op = OP_{number};",
        f"static const int32_t {name}_places[] = {{{c_list(named_kernel.node_inputs)}}};",
        f"static const int32_t {name}_stars[] = {{{c_list(wildcard_axes)}}};",
        f"static const int32_t {name}_there[] = {{{c_list(map(int, named_kernel.is_present))}}};",
        f"static const OrtkitFixed {name}_fixed[] = {{{fixed or '{0, 0, 0}'}}};",
        f"#define CHOICE_{number} {{&{name}_op, {name}_places, {name}_stars, "
        f"{len(named_kernel.is_present)}, {name}_there, {len(named_kernel.fixed)}, {name}_fixed, "
        f"{len(named_kernel.conditions)}, {f'{name}_conditions' if conditions else 'NULL'}, "
        f"{packs_name}}}\n",
    ]


def _named_source(position: int, op: NamedOp, first: int) -> list[str]:
    name = f"named{position}"
    attributes = ", ".join(
        f"{{{c_text(attribute.name)}, {int(attribute.is_float)}, "
        f"{int(attribute.default is None)}, "
        f"{_number(0 if attribute.default is None else attribute.default)}}}"
        for attribute in op.attributes
    )
    choices = ", ".join(f"CHOICE_{first + index}" for index in range(len(op.kernels)))
    packs = ", ".join(f"NAMED{position}_PACK{index}" for index in range(len(op.packs)))
    inputs = c_list(ELEMENT_TYPES[dtype] for dtype, _ in op.inputs)
    outputs = c_list(ELEMENT_TYPES[dtype] for dtype in op.outputs)
    return [
        f"static const int32_t {name}_inputs[] = {{{inputs}}};",
        f"static const int32_t {name}_kinds[] = {{{c_list(kind for _, kind in op.inputs)}}};",
        f"static const int32_t {name}_outputs[] = {{{outputs}}};",
        f"static const OrtkitAttribute {name}_attributes[] = "
        f"{{{attributes or '{0, 0, 0, 0, 0}'}}};",
        f"static const OrtkitChoice {name}_choices[] = {{{choices}}};",
        *([f"static const OrtkitPack {name}_packs[] = {{{packs}}};"] if packs else []),
        f"#define NAMED_{position} {{{c_text(op.domain)}, {c_text(op.name)}, {op.version}, "
        f"{len(op.inputs)}, {name}_inputs, {name}_kinds, {len(op.outputs)}, {name}_outputs, "
        f"{len(op.attributes)}, {name}_attributes, {len(op.kernels)}, {name}_choices, "
        f"{pairs_name(_inplace(op))}, {len(op.packs)}, {f'{name}_packs' if packs else 'NULL'}}}\n",
    ]


def _number(value: float | int) -> str:
    """Return a value as the integer and as the float of a C initializer."""
    if isinstance(value, float):
        return f"0, (float){value.hex()}"
    return f"{value}, 0"

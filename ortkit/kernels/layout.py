"""The canonical iteration space of a pointwise region: few axes, and which tensor has which.

Sizes next to each other that every tensor treats alike become one axis, so that
`X [batch, seq, 768] + B [768]` is two axes, `batch * seq` and `768`, of which B has the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature, TensorSpec

# The bounds of custom_ops/native/manifest.h.
MAX_TENSORS = 64
MAX_SYMBOLS = 32
MAX_RANK = 16


@dataclass(frozen=True)
class Axis:
    """One axis: `size` times the product of the named sizes `symbols`."""

    size: int
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """An iteration space, outermost axis first, and the tensors in it.

    Args:
        axes: At least one.
        moves: Per tensor (inputs, then outputs), per axis: whether the tensor has it. A tensor is
            dense over its axes, and the same for all points of the others.
    """

    axes: tuple[Axis, ...]
    moves: tuple[tuple[bool, ...], ...]


def canonical_layout(signature: RegionSignature) -> Layout | Refused:
    """Return the layout of a pointwise region, or why it has none."""
    tensors = (*signature.inputs, *signature.outputs)
    if too_large := _exceeds_bounds(signature):
        return too_large
    rank = max(len(tensor.shape) for tensor in tensors)
    shapes = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    space: list[int | str] = []
    for position in range(rank):
        sizes = {shape[position] for shape in shapes} - {1}
        if len(sizes) > 1:
            found = ", ".join(sorted(map(str, sizes)))
            return Refused(f"sizes {found} meet in dim {position - rank}: equal or not is unknown")
        space.append(sizes.pop() if sizes else 1)
    for tensor in signature.outputs:
        if tensor.shape != tuple(space):
            return Refused(f"output {tensor.name!r} does not have the shape of the whole region")
    return _merge_axes(space, shapes)


def _exceeds_bounds(signature: RegionSignature) -> Refused | None:
    tensors = (*signature.inputs, *signature.outputs)
    if not signature.outputs:
        return Refused("the region has no output")
    if len(tensors) > MAX_TENSORS:
        return Refused(f"{len(tensors)} inputs and outputs, at most {MAX_TENSORS} are supported")
    if max(len(tensor.shape) for tensor in tensors) > MAX_RANK:
        return Refused(f"a tensor of more than {MAX_RANK} dims")
    known = _symbols(signature.inputs)
    if len(known) > MAX_SYMBOLS:
        return Refused(f"{len(known)} named sizes, at most {MAX_SYMBOLS} are supported")
    if unknown := sorted(_symbols(signature.outputs) - known):
        return Refused(f"no input tells the size {unknown[0]!r} of an output")
    return None


def _symbols(tensors: tuple[TensorSpec, ...]) -> set[str]:
    return {dim for tensor in tensors for dim in tensor.shape if isinstance(dim, str)}


def _merge_axes(space: list[int | str], shapes: list[tuple[int | str, ...]]) -> Layout:
    """Group neighbouring dims that every tensor treats alike; dims of size 1 disappear."""
    groups: list[tuple[tuple[bool, ...], list[int | str]]] = []
    for position, size in enumerate(space):
        if size == 1:
            continue
        column = tuple(shape[position] == size for shape in shapes)
        if groups and groups[-1][0] == column:
            groups[-1][1].append(size)
        else:
            groups.append((column, [size]))
    if not groups:
        groups.append(((False,) * len(shapes), []))
    axes = tuple(
        Axis(
            prod(size for size in sizes if isinstance(size, int)),
            tuple(size for size in sizes if isinstance(size, str)),
        )
        for _, sizes in groups
    )
    return Layout(axes, tuple(zip(*(column for column, _ in groups), strict=True)))

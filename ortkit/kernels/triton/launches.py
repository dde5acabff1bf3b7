"""The launches of a variant at given sizes: what the shim works out before it calls the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ortkit.kernels.cuda import MAX_GRID, CeilDiv, Condition, Step, Variant
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.kernels.value_sizes import value_sizes

Sizes = Sequence[int]
"""The named sizes of a signature, in the order of `symbols_of` of its tensors."""


class SizesError(Exception):
    """Why a kernel has no launch at some sizes."""


@dataclass(frozen=True)
class Passed:
    """One argument of a launch.

    Args:
        type: The parameter's type, as Triton's signatures have it.
        value: A size; or the number of a tensor or, after all tensors, of a scratch block.
        first: Bytes from the start of the tensor.
        dims: Sizes of a tensor map, outermost first; empty for everything else.
        strides: Of the map, in bytes, without the innermost.
    """

    type: str
    value: int
    first: int = 0
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One launch with all its numbers."""

    text: str
    entry: str
    grid: tuple[int, ...]
    arguments: tuple[Passed, ...]
    is_gluon: bool


@dataclass(frozen=True)
class Launches:
    """The launches of a variant, and bytes of each block of scratch memory."""

    launches: tuple[Launch, ...]
    scratch: tuple[int, ...]


def sizes_of(
    signature: RegionSignature,
    shapes: Sequence[Sequence[int]],
    values: Mapping[int, int] | None = None,
) -> list[int]:
    """Return the named sizes, as the shim solves them from the inputs.

    Args:
        signature: Of the kernel.
        shapes: Of the inputs.
        values: The numbers that inputs are, by their place, where sizes of outputs follow from
            them.

    Raises:
        SizesError: The shapes do not determine them, or contradict the signature.
    """
    known: dict[str, int] = {}
    for spec, shape in zip(signature.inputs, shapes, strict=True):
        for dim, size in zip(spec.shape, shape, strict=True):
            extent = extent_of(dim)
            unknown = [symbol for symbol in extent.symbols if symbol not in known]
            rest = extent.factor
            for symbol in extent.symbols:
                rest *= known.get(symbol, 1)
            if len(unknown) == 1:
                known[unknown[0]] = size // rest if rest else 0
            if len(unknown) <= 1 and _product(extent, known) != size:
                raise SizesError(f"{spec.name!r} has {size} where its kernel expects {extent}")
    for each in value_sizes(signature):
        if values is not None and each.tensor in values:
            known[each.symbol] = max(_product(each.least, known), values[each.tensor])
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    if missing := [symbol for symbol in symbols if symbol not in known]:
        raise SizesError(f"the inputs do not determine the size {missing[0]!r}")
    return [known[symbol] for symbol in symbols]


def _product(extent: Extent, known: dict[str, int]) -> int:
    result = extent.factor
    for symbol in extent.symbols:
        result *= known[symbol]
    return result


def shape_of(spec: TensorSpec, signature: RegionSignature, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of a tensor of the signature."""
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    known = dict(zip(symbols, sizes, strict=True))
    return tuple(_product(extent_of(dim), known) for dim in spec.shape)


def evaluate(extent: Extent, sizes: Sizes) -> int:
    """Return a size of a variant, whose symbols are `s0`, `s1` ..."""
    result = extent.factor
    for symbol in extent.symbols:
        result *= sizes[int(symbol[1:])]
    return result


def blocks_of(ceil_div: CeilDiv, sizes: Sizes) -> int:
    """Return the number of blocks along one dim of a grid."""
    return -(-evaluate(ceil_div.extent, sizes) // ceil_div.divisor)


def block_count(variant: Variant, sizes: Sizes) -> int:
    """Return the number of blocks of threads of all launches of a variant."""
    return sum(
        prod(blocks_of(ceil_div, sizes) for ceil_div in step.grid) for step in variant.steps
    )


def holds(condition: Condition, sizes: Sizes) -> bool:
    """Return whether a condition on a size holds."""
    size = evaluate(condition.extent, sizes)
    most = condition.at_most
    return size % condition.divisible_by == 0 and (most is None or size <= most)


def has_maps(variant: Variant, sizes: Sizes) -> bool:
    """Return whether all tensors that a variant has maps of have elements."""
    maps = (map_ for step in variant.steps for map_ in step.maps)
    return all(evaluate(dim, sizes) for tensor_map in maps for dim in tensor_map.dims)


def fitting(variants: Sequence[Variant], sizes: Sizes) -> list[int]:
    """Return the numbers of the variants that may be launched on aligned tensors."""
    return [
        number
        for number, variant in enumerate(variants)
        if all(holds(condition, sizes) for condition in variant.conditions)
        and has_maps(variant, sizes)
    ]


def launches_of(source: VariantSource, variant: Variant, tensors: int, sizes: Sizes) -> Launches:
    """Return the launches of a variant; those with an empty grid are left out.

    Args:
        source: The variant before it is compiled.
        variant: The same as data.
        tensors: Number of tensors of the signature.
        sizes: Named sizes that its conditions hold for.

    Raises:
        SizesError: A grid or a size exceeds what the driver takes.
    """
    found = []
    for text, step in zip(source.steps, variant.steps, strict=True):
        grid = tuple(blocks_of(ceil_div, sizes) for ceil_div in step.grid)
        if any(n > most for n, most in zip(grid, MAX_GRID, strict=True)):
            raise SizesError(f"the grid {grid} of {step.entry!r} is larger than the driver takes")
        if all(grid):
            arguments = _arguments(text, step, tensors, sizes)
            found.append(Launch(text.text, step.entry, grid, arguments, text.is_gluon))
    return Launches(tuple(found), tuple(evaluate(extent, sizes) for extent in variant.scratch))


def _arguments(text: StepSource, step: Step, tensors: int, sizes: Sizes) -> tuple[Passed, ...]:
    found = []
    for parameter in text.parameters:
        argument, type_ = parameter.argument, parameter.type
        if argument.kind == "map":
            map_ = step.maps[argument.index]
            dims = tuple(evaluate(size, sizes) for size in map_.dims)
            strides = tuple(evaluate(size, sizes) for size in map_.strides)
            number = map_.tensor if map_.tensor >= 0 else tensors - 1 - map_.tensor
            found.append(Passed(type_, number, map_.first, dims, strides))
        elif argument.extent is None:
            behind = tensors if argument.kind == "scratch" else 0
            found.append(Passed(type_, behind + argument.index))
        else:
            size = evaluate(argument.extent, sizes)
            if size >= 2 ** (31 if argument.kind == "size32" else 63):
                raise SizesError(f"the size {size} does not fit into {argument.kind}")
            found.append(Passed(type_, size))
    return tuple(found)

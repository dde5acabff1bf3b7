"""The sizes at which a kernel is checked: every free size at the edges of tiles, in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ortkit.graph.symbolic.dims import Atom, Dim, Size, replace_atoms

#: Sizes that have remainders of their own in the loops of docs/concepts/kernels.md, at the units
#: that CPU kernels work in: vectors of 8 and 16, register tiles of 6, 9 and 14 rows, panels of 32
#: to 64.
_TILES = (6, 9, 14, 8, 16, 32, 64)
EDGES = tuple(sorted({1, 2, 3, *(n + step for n in _TILES for step in (-1, 0, 1))}))
#: Odd sizes beyond blocks of 128 and 256, and beyond the 4,096 elements of a row that are kept.
LARGE = (4099, 1031, 263, 131)
#: What the other sizes are while one of them is large or at an edge.
_SMALL = (1, 2, 3, 5)


@dataclass(frozen=True)
class Design:
    """Which sizes are tried."""

    first: tuple[int, ...] = (1, 3, 2)
    """What all sizes are at once, in the first cases; all but 2 are required."""
    tiles: tuple[int, ...] = ()
    """What all sizes but one are at once; required."""
    large: tuple[int, ...] = LARGE
    """What one size is while the others are small; the last is required."""
    equal: tuple[int, ...] = (8, 17, 33, 131)
    """What all sizes are at once, for bodies that run only where sizes are equal."""
    edges: tuple[int, ...] = EDGES
    """What one size is while the others are small."""
    most: int = 1 << 18
    """Elements of all tensors but constants. The smallest sizes are tried whatever they have."""
    most_large: int = 1 << 19
    """Elements where a size is large and required."""
    most_first: int = 1 << 22
    """Elements of the first cases."""


#: Sizes of kernels that a processor runs.
RUN = Design()
#: Sizes of kernels that Triton's interpreter runs, at some 20 us an operation. Multiples of 16 and
#: of 64 have variants of their own (docs/concepts/kernels_cuda.md).
INTERPRETED = Design(
    first=(1, 3, 17),
    tiles=(3, 64),
    large=(263, 131),
    equal=(16, 33, 128),
    edges=(16, 33, 15, 48, 32, 64, 65, 128, 31, 63, 127, 129, 2, 8),
    most=1 << 16,
    most_large=1 << 17,
    most_first=1 << 18,
)
#: Sizes larger than this are no sizes of a run: polynomials may grow without limit.
_MAX_SIZE = 1 << 20

Shapes = tuple[tuple[int, ...], ...]
Generator = Atom | Dim
Symbolic = tuple[Size, ...]


@dataclass(frozen=True)
class SizeCase:
    """One choice of all free sizes."""

    shapes: Shapes
    """Of the inputs."""
    elements: int
    """Of all inputs and outputs together."""
    is_required: bool
    """Whether it is tried however long it takes; others as long as there is time."""


def size_cases(
    inputs: Sequence[Symbolic], outputs: Sequence[Symbolic] = (), design: Design = RUN
) -> tuple[SizeCase, ...]:
    """Return the sizes to try, the most telling ones first.

    Each free size takes each edge and one large size while the others are small, and all of them
    are equal in some cases. Sizes that follow from others are computed.

    Args:
        inputs: The shapes of inputs that are not constants of the model.
        outputs: The shapes of outputs, where they are known.
        design: Which sizes.
    """
    dims = list(dict.fromkeys(d for shape in inputs for d in shape if isinstance(d, Dim)))
    generators, factors = _generators(dims)
    made: dict[Shapes, SizeCase] = {}
    for chosen, is_required, limit in _choices(generators, design):
        shapes = _evaluated(inputs, chosen, factors)
        if shapes is None or shapes in made:
            continue
        results = _evaluated(outputs, chosen, factors) or ()
        elements = sum(map(prod, (*shapes, *results)))
        if elements <= limit or not made:
            made[shapes] = SizeCase(shapes, elements, is_required)
    return _without_spare_large(tuple(made.values()), inputs, design)


def _without_spare_large(
    cases: tuple[SizeCase, ...], inputs: Sequence[Symbolic], design: Design
) -> tuple[SizeCase, ...]:
    """Return the cases with at most two beyond the usual limit for each free size."""
    dims = {d for shape in inputs for d in shape if isinstance(d, Dim)}
    left = 2 * len(dims)
    kept: list[SizeCase] = []
    for case in cases:
        if case.elements > design.most and len(kept) >= len(design.first):
            if left == 0:
                continue
            left -= 1
        kept.append(case)
    return tuple(kept)


def _choices(
    generators: Sequence[Generator], design: Design
) -> Iterator[tuple[dict[Generator, int], bool, int]]:
    """Yield values of all generators, whether they are required, and the most elements."""
    if not generators:
        yield {}, True, design.most_first
        return
    for value in design.first:
        yield dict.fromkeys(generators, value), value != 2, design.most_first
    for value in design.tiles:
        for generator in generators:
            chosen = dict.fromkeys(generators, value)
            yield chosen | ({generator: 1} if len(chosen) > 1 else {}), True, design.most_first
    for turn, generator in enumerate(generators):
        for large in design.large:
            is_required = large == design.large[-1]
            limit = design.most_large if is_required else design.most
            yield _around(generators, generator, large, turn % 2), is_required, limit
    for value in design.equal:
        yield dict.fromkeys(generators, value), False, design.most
    for number, edge in enumerate(design.edges):
        for turn, generator in enumerate(generators):
            yield _around(generators, generator, edge, number + turn), False, design.most


def _around(
    generators: Sequence[Generator], chosen: Generator, value: int, turn: int
) -> dict[Generator, int]:
    """Return small sizes for all generators but one."""
    small = {
        generator: _SMALL[(turn + index) % len(_SMALL)]
        for index, generator in enumerate(generators)
    }
    return {**small, chosen: value}


def _evaluated(
    inputs: Sequence[Symbolic], chosen: Mapping[Generator, int], factors: Mapping[Dim, int]
) -> Shapes | None:
    """Return the shapes at given sizes, None if there is no such run."""
    shapes = []
    for shape in inputs:
        sizes = []
        for dim in shape:
            size = _size(dim, chosen, factors)
            if size is None or (size != dim and not 0 < size <= _MAX_SIZE):
                return None
            sizes.append(size)
        shapes.append(tuple(sizes))
    return tuple(shapes)


def _size(dim: Size, chosen: Mapping[Generator, int], factors: Mapping[Dim, int]) -> int | None:
    if isinstance(dim, int):
        return dim
    if dim in factors:
        return factors[dim] * chosen[dim]
    try:
        size = replace_atoms(dim, lambda atom: chosen.get(atom))
    except (ValueError, ZeroDivisionError):
        return None
    return size if isinstance(size, int) else None


def _generators(dims: Sequence[Dim]) -> tuple[list[Generator], dict[Dim, int]]:
    """Return what is chosen freely, and the dims that are a number times one choice.

    A dim that shares no name with another one is chosen as a whole, whatever it is computed
    from. Else its factors are, if they share none; else the names themselves.
    """
    generators: dict[Generator, None] = {}
    factors: dict[Dim, int] = {}
    for group in _connected(dims):
        if len(group) == 1 and not _has_power(group[0]):
            (dim,) = group
            factors[dim] = dim.terms[0][1] if len(dim.terms) == 1 and dim.terms[0][0] else 1
            generators[dim] = None
            continue
        atoms = {atom for dim in group for monomial, _ in dim.terms for atom in monomial}
        leaves = [leaf for atom in atoms for leaf in _leaves(atom)]
        is_product = all(len(dim.terms) == 1 for dim in group)
        chosen = atoms if is_product and len(leaves) == len(set(leaves)) else set(leaves)
        for atom in sorted(chosen, key=lambda atom: atom.key):
            generators[atom] = None
    return list(generators), factors


def _connected(dims: Sequence[Dim]) -> list[list[Dim]]:
    """Return dims in groups that share no name."""
    groups: list[tuple[set[Atom], list[Dim]]] = []
    for dim in dims:
        names = {leaf for monomial, _ in dim.terms for atom in monomial for leaf in _leaves(atom)}
        members = [dim]
        separate = []
        for known, others in groups:
            if known & names:
                names |= known
                members = [*others, *members]
            else:
                separate.append((known, others))
        groups = [*separate, (names, members)]
    return [members for _, members in groups]


def _has_power(dim: Dim) -> bool:
    return any(len(monomial) > len(set(monomial)) for monomial, _ in dim.terms)


def _leaves(atom: Atom) -> set[Atom]:
    """Return the names and unknowns that an atom is computed from."""
    if not atom.args:
        return {atom}
    parts = (part for part in atom.args if isinstance(part, Dim))
    return {
        leaf for part in parts for monomial, _ in part.terms for item in monomial
        for leaf in _leaves(item)
    }  # fmt: skip

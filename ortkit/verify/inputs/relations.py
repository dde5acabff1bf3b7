"""Free sizes that follow from others, read from the operators: `total = past + sequence`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import (
    Atom,
    Dim,
    Size,
    add,
    multiply,
    names,
    replace_atoms,
    sole_atom,
)
from ortkit.operators import where
from ortkit.verify.inputs.caches import Cache, caches_of, window_sizes

#: Operators whose inputs broadcast.
_BROADCASTING = where(broadcasts=True)
_Pair = tuple[Size, Size]


@dataclass(frozen=True)
class Relations:
    """What operators demand of sizes."""

    sizes: Mapping[str, Size] = field(default_factory=dict)
    """By name, the number or the expression that a size equals."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """By name, the largest number of a size: a table has no more rows."""
    unnamed: Mapping[Atom, Size] = field(default_factory=dict)
    """What a size that the model gives no name is called."""


def related_sizes(
    model: ir.Model,
    shapes: Shapes,
    inputs: Sequence[ir.Value],
    sizes: Sequence[tuple[Size, ...]],
    fixed: Mapping[str, int],
    masks: Sequence[ir.Value] = (),
) -> Relations:
    """Return the sizes that operators demand to equal a number or an expression.

    A size that broadcasts may also be 1; it is then taken to be the larger one.

    Args:
        model: Read, not changed.
        shapes: Facts about the model's values.
        inputs: The graph inputs that are fed.
        sizes: Shapes of `inputs`; every unknown size has a name.
        fixed: Sizes with a number, which follow from nothing.
        masks: Those of `inputs` that are masks.
    """
    named: dict[Atom, Size] = {}
    for value, shape in zip(inputs, sizes, strict=True):
        for known, size in zip(shapes.shape(value) or (), shape, strict=False):
            atom = sole_atom(known)
            if atom is not None and atom.kind == "size":
                named.setdefault(atom, size)
    free = {name for shape in sizes for size in shape for name in names(size)} - fixed.keys()
    solved: dict[str, Size] = {}
    limits: dict[str, int] = {}
    for left, right in _demands(model, shapes, inputs, sizes, masks):
        try:
            pair = (_settled(left, named, solved, fixed), _settled(right, named, solved, fixed))
        except (ValueError, ZeroDivisionError):
            continue
        for name, limit in (*_limit(*pair), *_limit(*reversed(pair))):
            limits[name] = min(limit, limits.get(name, limit))
        found = _solution(*pair, free - solved.keys())
        # A size of results alone decides no size of an input.
        if found is not None and set(names(found[1])) <= free:
            name, size = found
            solved = {n: _put(each, name, size) for n, each in solved.items()} | {name: size}
    return Relations(solved, limits, named)


def _limit(part: Size, whole: Size) -> Iterator[tuple[str, int]]:
    """Yield the limit of a name where as many of a number of elements are taken."""
    atom, name = sole_atom(part), sole_atom(whole)
    if atom is None or atom.kind != "min" or name is None or name.kind != "name":
        return
    if len(atom.args) == 2 and whole in atom.args:
        yield from ((name.label, each) for each in atom.args if isinstance(each, int))


def _demands(
    model: ir.Model,
    shapes: Shapes,
    inputs: Sequence[ir.Value],
    sizes: Sequence[tuple[Size, ...]],
    masks: Sequence[ir.Value],
) -> Iterator[_Pair]:
    """Yield pairs of sizes that are equal, or of which one is 1, in a run that succeeds."""
    for value, shape in zip(inputs, sizes, strict=True):
        yield from zip(shape, shapes.shape(value) or (), strict=False)
    caches = caches_of(model, shapes)
    for cache in caches:
        yield from _of_cache(cache)
    yield from window_sizes(model, shapes)
    for node in model.graph:
        yield from _of_node(node, shapes)
    for value in model.graph.outputs:
        yield from _of_output(value, shapes)
    yield from _of_masks(caches, inputs, sizes, masks)


def _of_cache(cache: Cache) -> Iterator[_Pair]:
    total = add(cache.past, cache.new)
    for size in cache.totals:
        yield size, total
    yield from cache.equal


def _of_masks(
    caches: Sequence[Cache],
    inputs: Sequence[ir.Value],
    sizes: Sequence[tuple[Size, ...]],
    masks: Sequence[ir.Value],
) -> Iterator[_Pair]:
    """Take a mask whose length is no other input's to be of all keys of a cache.

    Where a mask is read at places that are computed, no operator demands its length.
    """
    if not caches:
        return
    total = add(caches[0].past, caches[0].new)
    for value, shape in zip(inputs, sizes, strict=True):
        if value not in masks or len(shape) < 2:
            continue
        others = {
            name for each in sizes if each is not shape for size in each for name in names(size)
        }
        atom = sole_atom(shape[-1])
        if atom is not None and atom.kind == "name" and atom.label not in others:
            yield shape[-1], total


def _of_node(node: ir.Node, shapes: Shapes) -> Iterator[_Pair]:
    if node.domain != "" or len(node.inputs) < 2:
        return
    found = [None if value is None else shapes.shape(value) for value in node.inputs]
    known = [shape for shape in found if shape is not None]
    if node.op_type in _BROADCASTING:
        yield from _aligned(known)
    elif node.op_type == "Expand" and found[0] is not None and node.inputs[1] is not None:
        wanted = shapes.contents(node.inputs[1])
        yield from _aligned([found[0], wanted] if wanted is not None else [])
    elif node.op_type == "Concat" and len(known) == len(found) and known[0]:
        axis = node.attributes.get_int("axis", 0) % len(known[0])
        for other in known[1:]:
            pairs = list(zip(known[0], other, strict=False))
            yield from pairs[:axis] + pairs[axis + 1 :]
    elif node.op_type == "MatMul" and len(known) == 2 and all(known):
        left, right = known
        yield left[-1], right[-2] if len(right) > 1 else right[0]
        yield from _aligned([left[:-2], right[:-2]])
    elif node.op_type in ("Conv", "ConvInteger") and len(known) > 1 and len(known[0]) > 2:
        yield known[0][1], multiply(known[1][1], node.attributes.get_int("group", 1))


def _of_output(value: ir.Value, shapes: Shapes) -> Iterator[_Pair]:
    """Yield what an output is declared as, where it is computed as an expression.

    Exporters repeat names on outputs; one that stands for another name is no demand.
    """
    for dim, size in zip(value.shape or (), shapes.shape(value) or (), strict=False):
        is_name = not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier()
        if is_name and isinstance(size, Dim) and sole_atom(size) is None:
            assert not isinstance(dim, int)
            assert dim.value is not None
            yield Dim.named(dim.value), size


def _aligned(shapes: Sequence[Sequence[Size]]) -> Iterator[_Pair]:
    """Yield the sizes that meet where shapes are aligned at their last axes."""
    for i, first in enumerate(shapes):
        for second in shapes[i + 1 :]:
            pairs = zip(reversed(first), reversed(second), strict=False)
            yield from ((a, b) for a, b in pairs if a != 1 and b != 1)


def _settled(
    size: Size, named: Mapping[Atom, Size], solved: Mapping[str, Size], fixed: Mapping[str, int]
) -> Size:
    """Put in what is known of a size's parts."""

    def choose(atom: Atom) -> Size | None:
        if atom.kind == "size":
            return replace_atoms(named[atom], choose) if atom in named else None
        if atom.kind != "name":
            return None
        return fixed.get(atom.label, solved.get(atom.label))

    return replace_atoms(size, choose)


def substituted(
    size: Size, related: Mapping[str, Size], unnamed: Mapping[Atom, Size] | None = None
) -> Size:
    """Put in the sizes that others follow from, first those that have no name in the model."""
    if unnamed:
        size = replace_atoms(size, unnamed.get)
    return replace_atoms(
        size, lambda atom: related.get(atom.label) if atom.kind == "name" else None
    )


def _put(size: Size, name: str, other: Size) -> Size:
    def choose(atom: Atom) -> Size | None:
        return other if atom.kind == "name" and atom.label == name else None

    return replace_atoms(size, choose)


def _solution(left: Size, right: Size, free: set[str]) -> tuple[str, Size] | None:
    """Solve `left == right` for a free name; None where none can be solved for."""
    if left == right:
        return None
    for one, other in ((left, right), (right, left)):
        atom = sole_atom(one)
        if atom is not None and atom.kind == "min" and other in atom.args and len(atom.args) == 2:
            # A part of this length is taken of what must be as long.
            one = next(arg for arg in atom.args if arg != other)
            atom = sole_atom(one)
        if not _is_plain(other):
            continue
        if atom is not None and atom.label in free and atom.label not in names(other):
            return atom.label, other
    if not _is_plain(left) or not _is_plain(right):
        return None
    rest = add(left, multiply(right, -1))
    for monomial, factor in rest.terms if isinstance(rest, Dim) else ():
        if len(monomial) != 1 or abs(factor) != 1 or monomial[0].label not in free:
            continue
        name = monomial[0].label
        others = add(multiply(rest, -factor), Dim.named(name))
        if name not in names(others):
            return name, others
    return None


def _is_plain(size: Size) -> bool:
    """Say whether a size is made of names and numbers alone."""
    if isinstance(size, int):
        return size >= 0
    return all(atom.kind == "name" for atom in size.atoms())

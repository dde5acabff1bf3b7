"""Sizes in a region: what is equal in every run that does not fail, and what no input tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.graph.symbolic.dims import Size, sole_atom
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product, solvable_symbols, symbols_of
from ortkit.rewrite.scope import Scope


def equal_sizes(scope: Scope, nodes: Iterable[ir.Node]) -> dict[Size, Size]:
    """Return what else a size is called, where operands of one node broadcast.

    A table of k rows that is cut to n has min(n, k) of them. Beside n these are n, or the run
    fails: where they are k, and k is not n and not 1, they do not broadcast.
    """
    found: dict[Size, Size] = {}
    for node in nodes:
        if access_of(node) != "elementwise":
            continue
        shapes = [scope.shapes.shape(value) for value in node.inputs if value is not None]
        for left, right in combinations([shape for shape in shapes if shape is not None], 2):
            for one, other in zip(reversed(left), reversed(right), strict=False):
                if one == other:
                    continue
                if _is_cut(one, other):
                    found[one] = other
                elif _is_cut(other, one):
                    found[other] = one
    return found


def _is_cut(size: Size, whole: Size) -> bool:
    """Say whether `size` is the smaller of `whole` and numbers over 1."""
    atom = sole_atom(size)
    if atom is None or atom.kind != "min" or whole not in atom.args:
        return False
    return all(isinstance(arg, int) and arg > 1 for arg in atom.args if arg != whole)


def join_unsolved(
    inputs: Sequence[TensorSpec], others: Sequence[TensorSpec]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return both with one name for each product whose factors follow from no input.

    Pixels of an image of any size are h * w in all that is made of rows of them: nothing needs
    h. A product is joined where its factors stand nowhere else.
    """
    known = solvable_symbols(inputs)
    every = (*inputs, *others)
    parts = {_unsolved(extent_of(dim), known) for spec in every for dim in spec.shape}
    factors = [symbol for part in parts for symbol in set(part)]
    if len(factors) > len(set(factors)):
        return tuple(inputs), tuple(others)
    names = {part: ".".join(part) for part in parts if len(part) > 1}
    if not names or set(names.values()) & set(symbols_of(every)):
        return tuple(inputs), tuple(others)

    def joined(dim: int | str) -> int | str:
        extent = extent_of(dim)
        name = names.get(_unsolved(extent, known))
        if name is None:
            return dim
        solved = (symbol for symbol in extent.symbols if symbol in known)
        return str(Extent(extent.factor, tuple(sorted((*solved, name)))))

    found = [replace(spec, shape=tuple(map(joined, spec.shape))) for spec in every]
    return tuple(found[: len(inputs)]), tuple(found[len(inputs) :])


def joined_rows(sizes: Sequence[int | str]) -> int | str | None:
    """Return the product of sizes as a `TensorSpec` has it; None where its text would not say."""
    found = product(extent_of(size) for size in sizes)
    if found.static is not None:
        return found.static
    return str(found) if extent_of(str(found)) == found else None


def _unsolved(extent: Extent, known: frozenset[str]) -> tuple[str, ...]:
    return tuple(symbol for symbol in extent.symbols if symbol not in known)

"""Exact integer arithmetic over named sizes: `Dim`, a polynomial in canonical form.

A polynomial has integer coefficients over atoms: named sizes, sizes nobody named, and opaque
expressions (floor division, remainder, maximum, minimum, broadcast) of other sizes. Equal
objects are equal in every run; unequal ones may still be equal in some run.

What the proofs assume: a named or unknown size is an integer >= 0, a divisor is not 0 (the
run would have failed). Nothing is assumed to be >= 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from ortkit.graph.symbolic.bounds import bounds, differ, is_at_least
from ortkit.graph.symbolic.division import ceil_divide, divide_exactly, floor_divide, remainder
from ortkit.graph.symbolic.terms import (
    Atom,
    AtomKind,
    Dim,
    Monomial,
    Size,
    add,
    has_unknown,
    key_of,
    multiply,
    names,
    of_atom,
    product,
    sole_atom,
    weight,
)

__all__ = [
    "Atom",
    "AtomKind",
    "Dim",
    "Monomial",
    "Size",
    "add",
    "bounds",
    "broadcast",
    "ceil_divide",
    "combine",
    "differ",
    "divide_exactly",
    "floor_divide",
    "has_unknown",
    "is_at_least",
    "maximum",
    "minimum",
    "multiply",
    "names",
    "product",
    "remainder",
    "replace_atoms",
    "sole_atom",
    "substitute",
    "weight",
]

# ---- choices ---------------------------------------------------------------------------


def maximum(*sizes: Size) -> Size:
    """Return the largest; arguments that another one provably covers are dropped."""
    return _extreme("max", sizes, lambda kept, other: is_at_least(kept, other))


def minimum(*sizes: Size) -> Size:
    """Return the smallest; arguments that another one provably covers are dropped."""
    return _extreme("min", sizes, lambda kept, other: is_at_least(other, kept))


def _extreme(
    kind: Literal["max", "min"], sizes: Iterable[Size], covers: Callable[[Size, Size], bool]
) -> Size:
    kept: list[Size] = []
    for size in _flat(kind, sizes):
        if any(covers(other, size) for other in kept):
            continue
        kept = [other for other in kept if not covers(size, other)]
        kept.append(size)
    if len(kept) == 1:
        return kept[0]
    return of_atom(Atom(kind, "", tuple(sorted(kept, key=key_of))))


def broadcast(left: Size, right: Size) -> Size:
    """Return the size that `left` and `right` broadcast to.

    Raises:
        ValueError: Both are integers and do not broadcast.
    """
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    if isinstance(left, int) and isinstance(right, int):
        raise ValueError(f"sizes {left} and {right} do not broadcast")
    # A size that cannot be 1 wins: the other is equal to it, or is 1.
    if differ(left, 1):
        return left
    if differ(right, 1):
        return right
    for clipped, whole in ((left, right), (right, left)):
        if _is_whole_or_one(clipped, whole):
            return whole
    # Where the smaller one is not the larger one, one of them is 1. It is the smaller one,
    # unless a 0 meets a 1.
    for small, large in ((left, right), (right, left)):
        if is_at_least(large, small) and is_at_least(small, minimum(large, 1)):
            return large
    args = {key_of(size): size for size in _flat("broadcast", (left, right))}
    for key, size in list(args.items()):
        others = (other for name, other in args.items() if name != key)
        if any(_is_whole_or_one(size, other) for other in others):
            del args[key]
    if len(args) == 1:
        return next(iter(args.values()))
    return of_atom(Atom("broadcast", "", tuple(args[key] for key in sorted(args))))


def _is_whole_or_one(clipped: Size, whole: Size) -> bool:
    """Say whether `clipped` is `whole`, or 1, in every run in which both broadcast.

    So is max(0, n), as n is a size, max(1, n), and min(n, k) for a number k > 1: where that is
    k, and not n, it does not fit.
    """
    if not isinstance(clipped, Dim):
        return False
    atom = sole_atom(clipped)
    if atom is not None and atom.kind in ("min", "max") and whole in atom.args:
        others = [arg for arg in atom.args if arg != whole]
        if atom.kind == "max":
            return others in ([0], [1])
        return all(isinstance(arg, int) and arg > 1 for arg in others)
    below = sole_atom(clipped - 1)
    return below is not None and below == sole_atom(maximum(0, whole - 1))


def _flat(kind: AtomKind, sizes: Iterable[Size]) -> Iterator[Size]:
    for size in sizes:
        atom = sole_atom(size)
        if atom is not None and atom.kind == kind:
            yield from atom.args
        else:
            yield size


# ---- substitution ----------------------------------------------------------------------


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """Replace named sizes and compute again.

    Raises:
        ValueError: Integers put into a broadcast do not fit.
        ZeroDivisionError: A divisor became 0.
    """
    return replace_atoms(
        size, lambda atom: values.get(atom.label) if atom.kind == "name" else None
    )


def replace_atoms(size: Size, choose: Callable[[Atom], Size | None]) -> Size:
    """Replace each atom that `choose` gives a size for, also inside opaque expressions.

    Raises:
        ValueError, ZeroDivisionError: As `substitute`.
    """
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, factor in size.terms:
        part: Size = factor
        for atom in monomial:
            part = multiply(part, _replaced(atom, choose))
        total = add(total, part)
    return total


def _replaced(atom: Atom, choose: Callable[[Atom], Size | None]) -> Size:
    chosen = choose(atom)
    if chosen is not None:
        return chosen
    if not atom.args:
        return of_atom(atom)
    return combine(atom.kind, [replace_atoms(arg, choose) for arg in atom.args])


def combine(kind: AtomKind, args: list[Size]) -> Size:
    """Apply the operation of an opaque atom.

    Raises:
        ValueError: `kind` is no operation, or integers do not broadcast.
        ZeroDivisionError: A divisor is 0.
    """
    match kind:
        case "floordiv":
            return floor_divide(args[0], args[1])
        case "mod":
            return remainder(args[0], args[1])
        case "max":
            return maximum(*args)
        case "min":
            return minimum(*args)
        case "broadcast":
            result = args[0]
            for arg in args[1:]:
                result = broadcast(result, arg)
            return result
    raise ValueError(f"{kind!r} is no operation")

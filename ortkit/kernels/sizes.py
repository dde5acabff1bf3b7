"""Sizes of a region's tensors: products of a number and of sizes that are known at run time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeAlias

_PRODUCT = re.compile(r"[\w.:?!-]+(\*[\w.:?!-]+)*")


class HasShape(Protocol):
    """A tensor of a region: `TensorSpec`."""

    @property
    def shape(self) -> Sequence[int | str]:
        """Its sizes; a string is a product of sizes known at run time."""
        ...


@dataclass(frozen=True)
class Extent:
    """`factor` times the product of the sizes called `symbols` (sorted; twice for a square)."""

    factor: int
    symbols: tuple[str, ...] = ()

    @property
    def static(self) -> int | None:
        """The size if it is the same in every run."""
        return None if self.symbols and self.factor else self.factor

    def __mul__(self, other: Extent) -> Extent:
        return Extent(self.factor * other.factor, tuple(sorted(self.symbols + other.symbols)))

    def divided_by(self, other: Extent) -> Extent | None:
        """Return the quotient if it is an extent in every run, else None."""
        if other.factor == 0 or self.factor % other.factor:
            return None
        left = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        return Extent(self.factor // other.factor, tuple(left))

    def numbered(self, symbols: Sequence[str]) -> Extent:
        """Return the same with `s<i>` for `symbols[i]`."""
        return Extent(self.factor, tuple(sorted(f"s{symbols.index(s)}" for s in self.symbols)))

    def at(self, nominal: int) -> int:
        """Return the size if every named size were `nominal`."""
        return self.factor * int(nominal ** len(self.symbols))

    def __str__(self) -> str:
        parts = [] if self.factor == 1 and self.symbols else [str(self.factor)]
        return "*".join([*parts, *self.symbols])


ONE = Extent(1)
Shape: TypeAlias = tuple[Extent, ...]


def extent_of(dim: int | str) -> Extent:
    """Read one size of a `TensorSpec`; text that is no product is one name, whatever it says."""
    if isinstance(dim, int):
        return Extent(dim)
    if not _PRODUCT.fullmatch(dim):
        return Extent(1, (dim,))
    parts = dim.split("*")
    numbers = [int(part) for part in parts if part.isdecimal()]
    return Extent(prod(numbers), tuple(sorted(part for part in parts if not part.isdecimal())))


def known(sizes: Iterable[int | str]) -> tuple[int, ...]:
    """Return sizes as numbers, all of which are known."""
    every = tuple(sizes)
    numbers = tuple(size for size in every if isinstance(size, int))
    assert numbers == every, "a size that is known at run time only"
    return numbers


def product(extents: Iterable[Extent]) -> Extent:
    """Return the product, 1 for none."""
    result = ONE
    for extent in extents:
        result = result * extent
    return result


def symbols_of(tensors: Iterable[HasShape]) -> tuple[str, ...]:
    """Return the named sizes in the order of their first appearance: a kernel's parameters."""
    found = (symbol for t in tensors for dim in t.shape for symbol in extent_of(dim).symbols)
    return tuple(dict.fromkeys(found))


def solvable_symbols(inputs: Iterable[HasShape]) -> frozenset[str]:
    """Return the named sizes that follow from the shapes of inputs, in order of the inputs' dims.

    A dim determines its one name that is not known yet, if that stands in it once: `4*batch`
    determines batch. The native side solves them in the same order.
    """
    known: set[str] = set()
    for tensor in inputs:
        for dim in tensor.shape:
            extent = extent_of(dim)
            unknown = [symbol for symbol in extent.symbols if symbol not in known]
            if len(unknown) == 1 and extent.factor:
                known.add(unknown[0])
    return frozenset(known)

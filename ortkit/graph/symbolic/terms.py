"""Polynomials over sizes: what a `Dim` is made of, sums and products.

The public face, with the division and the rest of the arithmetic, is `ortkit.graph.symbolic.dims`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

AtomKind: TypeAlias = Literal[
    "name", "size", "value", "floordiv", "mod", "max", "min", "broadcast"
]


class Atom:
    """What a polynomial is made of: a named size, an unknown, or an opaque expression.

    `name` and `size` atoms are >= 0; a `value` atom (an unknown tensor element) has any sign.
    """

    __slots__ = ("_hash", "args", "interval", "key", "kind", "label", "weight")

    def __init__(self, kind: AtomKind, label: str, args: tuple[Size, ...] = ()) -> None:
        self.kind: AtomKind = kind
        self.label = label
        self.args = args
        # The length in front keeps names with odd characters from looking like other keys.
        inner = f"{len(label)}:{label}" if not args else ",".join(map(key_of, args))
        self.key = f"{kind}({inner})"
        self.weight: int = 1 + sum(weight(arg) for arg in args)
        self._hash = hash(self.key)
        self.interval: tuple[int | None, int | None] | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Atom) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.key


Monomial: TypeAlias = tuple[Atom, ...]
"""A product of atoms, sorted by key, repeated for powers; empty for the constant term."""


class Dim:
    """A size that is not one plain integer in every run; immutable and hashable.

    Arithmetic gives an `int` where the result is one. `==` is provable equality.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """Take terms in canonical form; use `Dim.named`, `Dim.unknown` or `parse_size`."""
        self.terms = terms
        self._hash = hash(terms)

    @staticmethod
    def named(name: str) -> Dim:
        """Return the size called `name`, >= 0."""
        return of_atom(Atom("name", name))

    @staticmethod
    def unknown(number: int, *, signed: bool = False) -> Dim:
        """Return unknown number `number`: a size, or with `signed` an integer of any sign."""
        return of_atom(Atom("value" if signed else "size", str(number)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __str__(self) -> str:
        return size_text(self)

    def __add__(self, other: Size) -> Size:
        return add(self, other)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Dim(tuple((monomial, -factor) for monomial, factor in self.terms))

    def __sub__(self, other: Size) -> Size:
        return add(self, -other)

    def __rsub__(self, other: Size) -> Size:
        return add(-self, other)

    def __mul__(self, other: Size) -> Size:
        return multiply(self, other)

    __rmul__ = __mul__

    def atoms(self) -> Iterator[Atom]:
        """Yield every atom, those inside opaque expressions too; repeats are possible."""
        for monomial, _ in self.terms:
            for atom in monomial:
                yield atom
                for arg in atom.args:
                    if isinstance(arg, Dim):
                        yield from arg.atoms()


Size: TypeAlias = int | Dim


# ---- sums and products -----------------------------------------------------------------


def of_atom(atom: Atom) -> Dim:
    """Return the size that the atom is."""
    return Dim((((atom,), 1),))


def terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    """Return monomials and their factors, leading one first; none for 0."""
    if isinstance(size, Dim):
        return size.terms
    return (((), int(size)),) if size else ()


def key_of(size: Size) -> str:
    """Return a text that differs between sizes that are not equal objects."""
    if isinstance(size, int):
        return str(size)
    return "+".join(
        "*".join((str(factor), *(atom.key for atom in monomial)))
        for monomial, factor in size.terms
    )


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """A monomial order: total degree first, then lexicographic. Products keep it."""
    return len(monomial), tuple(atom.key for atom in monomial)


def build(factors: dict[Monomial, int]) -> Size:
    """Return the sum of these terms in canonical form."""
    kept = {monomial: factor for monomial, factor in factors.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    if len(kept) == 1:
        return Dim(tuple(kept.items()))
    return Dim(tuple(sorted(kept.items(), key=lambda term: _order(term[0]), reverse=True)))


def _merge(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    return tuple(sorted(left + right, key=lambda atom: atom.key))


def add(left: Size, right: Size) -> Size:
    """Return the sum."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    factors = dict(terms_of(left))
    for monomial, factor in terms_of(right):
        factors[monomial] = factors.get(monomial, 0) + factor
    return build(factors)


def multiply(left: Size, right: Size) -> Size:
    """Return the product."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if right == 1:
        return left
    if left == 1:
        return right
    factors: dict[Monomial, int] = {}
    for monomial, factor in terms_of(left):
        for other, scale in terms_of(right):
            both = _merge(monomial, other)
            factors[both] = factors.get(both, 0) + factor * scale
    return build(factors)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of all, 1 for none."""
    number = 1
    rest: Size = 1
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            rest = multiply(rest, size)
    return multiply(number, rest) if number != 1 else rest


# ---- questions --------------------------------------------------------------------------


def weight(size: Size) -> int:
    """Return how many atoms the expression holds, the ones inside opaque ones included."""
    if isinstance(size, int):
        return 0
    return sum(atom.weight for monomial, _ in size.terms for atom in monomial)


def sole_atom(size: Size) -> Atom | None:
    """Return the atom that `size` is, None for anything else."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    monomial, factor = size.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def names(size: Size) -> frozenset[str]:
    """Return the named sizes that `size` depends on."""
    if isinstance(size, int):
        return frozenset()
    return frozenset(atom.label for atom in size.atoms() if atom.kind == "name")


def has_unknown(size: Size) -> bool:
    """Say whether `size` depends on an atom that has no name."""
    return isinstance(size, Dim) and any(atom.kind in ("size", "value") for atom in size.atoms())


# ---- text --------------------------------------------------------------------------------


def size_text(size: Size) -> str:
    """Write a size, e.g. `2*seq + 1`; unknowns come as `?12`, unknown elements as `!12`."""
    if isinstance(size, int):
        return str(size)
    text = ""
    parts = sorted(
        (-len(monomial), factor < 0, _term_text(monomial, abs(factor)), factor)
        for monomial, factor in size.terms
    )
    for _, _, part, factor in parts:
        if not text:
            text = part if factor > 0 else f"-{part}"
        else:
            text += f" + {part}" if factor > 0 else f" - {part}"
    return text


def _term_text(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    parts = [] if factor == 1 else [str(factor)]
    for atom in dict.fromkeys(monomial):
        power = monomial.count(atom)
        text = _atom_text(atom, alone=len(parts) == 0 and len(monomial) == 1)
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)


def _atom_text(atom: Atom, *, alone: bool) -> str:
    match atom.kind:
        case "name":
            return atom.label
        case "size":
            return f"?{atom.label}"
        case "value":
            return f"!{atom.label}"
        case "floordiv" | "mod":
            sign = "//" if atom.kind == "floordiv" else "%"
            text = sign.join(_operand_text(arg) for arg in atom.args)
            return text if alone else f"({text})"
    return f"{atom.kind}({', '.join(size_text(arg) for arg in atom.args)})"


def _operand_text(size: Size) -> str:
    text = size_text(size)
    return text if re.fullmatch(r"[\w.:?!]+", text) else f"({text})"

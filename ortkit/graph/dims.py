"""Exact integer arithmetic over named sizes: `Dim`, a polynomial in canonical form.

A polynomial has integer coefficients over atoms: named sizes, sizes nobody named, and opaque
expressions (floor division, remainder, maximum, minimum, broadcast) of other sizes. Equal
objects are equal in every run; unequal ones may still be equal in some run.

What the proofs assume: a named or unknown size is an integer >= 0, a divisor is not 0 (the
run would have failed). Nothing is assumed to be >= 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd
from typing import Literal, TypeAlias

AtomKind: TypeAlias = Literal[
    "name", "size", "value", "floordiv", "mod", "max", "min", "broadcast"
]


class Atom:
    """What a polynomial is made of: a named size, an unknown, or an opaque expression.

    `name` and `size` atoms are >= 0; a `value` atom (an unknown tensor element) has any sign.
    """

    __slots__ = ("_hash", "_interval", "args", "key", "kind", "label", "weight")

    def __init__(self, kind: AtomKind, label: str, args: tuple[Size, ...] = ()) -> None:
        self.kind: AtomKind = kind
        self.label = label
        self.args = args
        # The length in front keeps names with odd characters from looking like other keys.
        inner = f"{len(label)}:{label}" if not args else ",".join(map(_key_of, args))
        self.key = f"{kind}({inner})"
        self.weight: int = 1 + sum(weight(arg) for arg in args)
        self._hash = hash(self.key)
        self._interval: tuple[int | None, int | None] | None = None

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
        return _of_atom(Atom("name", name))

    @staticmethod
    def unknown(number: int, *, signed: bool = False) -> Dim:
        """Return unknown number `number`: a size, or with `signed` an integer of any sign."""
        return _of_atom(Atom("value" if signed else "size", str(number)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __str__(self) -> str:
        from ortkit.graph.dim_text import size_text

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

    def __floordiv__(self, other: Size) -> Size:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return floor_divide(other, self)

    def __mod__(self, other: Size) -> Size:
        return remainder(self, other)

    def __rmod__(self, other: Size) -> Size:
        return remainder(other, self)

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


def _of_atom(atom: Atom) -> Dim:
    return Dim((((atom,), 1),))


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(size, Dim):
        return size.terms
    return (((), int(size)),) if size else ()


def _key_of(size: Size) -> str:
    if isinstance(size, int):
        return str(size)
    return "+".join(
        "*".join((str(factor), *(atom.key for atom in monomial)))
        for monomial, factor in size.terms
    )


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    """A monomial order: total degree first, then lexicographic. Products keep it."""
    return len(monomial), tuple(atom.key for atom in monomial)


def _build(factors: dict[Monomial, int]) -> Size:
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
    factors = dict(_terms(left))
    for monomial, factor in _terms(right):
        factors[monomial] = factors.get(monomial, 0) + factor
    return _build(factors)


def multiply(left: Size, right: Size) -> Size:
    """Return the product."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if right == 1:
        return left
    if left == 1:
        return right
    factors: dict[Monomial, int] = {}
    for monomial, factor in _terms(left):
        for other, scale in _terms(right):
            both = _merge(monomial, other)
            factors[both] = factors.get(both, 0) + factor * scale
    return _build(factors)


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


# ---- bounds ----------------------------------------------------------------------------


def weight(size: Size) -> int:
    """Return how many atoms the expression holds, the ones inside opaque ones included."""
    if isinstance(size, int):
        return 0
    return sum(atom.weight for monomial, _ in size.terms for atom in monomial)


def bounds(size: Size) -> tuple[int | None, int | None]:
    """Return the provable minimum and maximum; None where there is no bound."""
    if isinstance(size, int):
        return size, size
    low: int | None = 0
    high: int | None = 0
    for monomial, factor in size.terms:
        least, most = _monomial_bounds(monomial)
        if factor < 0:
            least, most = most, least
        low = None if low is None or least is None else low + factor * least
        high = None if high is None or most is None else high + factor * most
    return low, high


def _monomial_bounds(monomial: Monomial) -> tuple[int | None, int | None]:
    if len(monomial) == 1:
        return _atom_bounds(monomial[0])
    low, high = 1, 1
    bounded = True
    for atom in monomial:
        least, most = _atom_bounds(atom)
        if least is None or least < 0:
            return None, None
        low *= least
        if most is None:
            bounded = False
        else:
            high *= most
    return low, high if bounded else None


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if atom._interval is None:
        atom._interval = _opaque_bounds(atom)
    return atom._interval


def _opaque_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if atom.kind in ("name", "size"):
        return 0, None
    if atom.kind == "value":
        return None, None
    each = [bounds(arg) for arg in atom.args]
    lows = [low for low, _ in each if low is not None]
    highs = [high for _, high in each if high is not None]
    if atom.kind in ("floordiv", "mod"):
        return _quotient_bounds(atom.kind, *each)
    if atom.kind == "max":
        return max(lows, default=None), max(highs) if len(highs) == len(each) else None
    if atom.kind == "min":
        return min(lows) if len(lows) == len(each) else None, min(highs, default=None)
    # A broadcast is 1 or one of its arguments.
    least = min(1, *lows) if len(lows) == len(each) else None
    return least, max(1, *highs) if len(highs) == len(each) else None


def _quotient_bounds(
    kind: AtomKind, over: tuple[int | None, int | None], under: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    low, high = over
    least, most = under
    if least is None or least < 1:
        return None, None
    if kind == "mod":
        return 0, None if most is None else most - 1
    if low is None:
        floor = None
    elif low >= 0:
        floor = 0 if most is None else low // most
    else:
        floor = low // least
    if high is None:
        return floor, None
    ceiling = high // least if high >= 0 else (-1 if most is None else high // most)
    return floor, ceiling


def is_at_least(left: Size, right: Size) -> bool:
    """Say whether `left >= right` is provable."""
    return _is_nonnegative(add(left, -right), depth=3)


def _is_nonnegative(size: Size, depth: int) -> bool:
    if isinstance(size, int):
        return size >= 0
    low, _ = bounds(size)
    if low is not None and low >= 0:
        return True
    if depth == 0:
        return False
    for monomial, factor in size.terms:
        if len(monomial) == 1 and monomial[0].args:
            rest = _build({m: f for m, f in size.terms if m is not monomial})
            if _holds_relaxed(monomial[0], factor, rest, depth - 1):
                return True
    return False


def _holds_relaxed(atom: Atom, factor: int, rest: Size, depth: int) -> bool:
    """Prove `factor * atom + rest >= 0` with what is known of the opaque atom."""
    if atom.kind == "floordiv":
        over, under = atom.args
        if not isinstance(under, int) or under < 1:
            return False
        # over - under + 1 <= under * floor(over / under) <= over
        bound = over if factor < 0 else add(over, 1 - under)
        whole = add(multiply(factor, bound), multiply(under, rest))
        return _is_nonnegative(add(whole, under - 1), depth)
    if atom.kind not in ("max", "min"):
        return False
    # A maximum is at least each argument and equals one of them; a minimum likewise.
    cases = (_is_nonnegative(add(multiply(factor, arg), rest), depth) for arg in atom.args)
    return any(cases) if (atom.kind == "max") == (factor > 0) else all(cases)


def differ(left: Size, right: Size) -> bool:
    """Say whether `left != right` is provable."""
    low, high = bounds(add(left, -right))
    return (low is not None and low > 0) or (high is not None and high < 0)


# ---- division --------------------------------------------------------------------------


def divide_exactly(over: Size, under: Size) -> Size | None:
    """Return the quotient where `over` is provably a multiple of `under`, else None."""
    if under == 0:
        return None
    if isinstance(over, int) and isinstance(under, int):
        return over // under if over % under == 0 else None
    divisor = _terms(under)
    lead, scale = divisor[0]
    rest, quotient = over, dict[Monomial, int]()
    for _ in range(64):
        if rest == 0:
            return _build(quotient)
        monomial, factor = _terms(rest)[0]
        if factor % scale:
            return None
        left = _without(monomial, lead)
        if left is None:
            return None
        step = factor // scale
        quotient[left] = step
        rest = add(rest, -multiply(under, _build({left: step})))
    return None


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def floor_divide(over: Size, under: Size) -> Size:
    """Return the quotient rounded down, as Python's `//`.

    Raises:
        ZeroDivisionError: `under` is 0.
    """
    if under == 0:
        raise ZeroDivisionError("division of a size by 0")
    exact = divide_exactly(over, under)
    if exact is not None:
        return exact
    if isinstance(under, int):
        return _floor_divide_by(over, under) if under > 0 else _floor_divide_by(-over, -under)
    over, under = _reduced(over, under)
    if isinstance(under, int):
        return floor_divide(over, under)
    if is_at_least(over, 0) and is_at_least(under, add(over, 1)):
        return 0
    return _of_atom(Atom("floordiv", "", (over, under)))


def _floor_divide_by(over: Size, under: int) -> Size:
    if isinstance(over, int):
        return over // under
    # floor((d * q + r) / d) = q + floor(r / d): the rest's factors lie in [0, d).
    whole = _build({monomial: factor // under for monomial, factor in over.terms})
    rest = _build({monomial: factor % under for monomial, factor in over.terms})
    if isinstance(rest, int):
        return add(whole, rest // under)
    shared = gcd(under, *(factor for monomial, factor in rest.terms if monomial))
    if shared > 1:
        # floor((g * p + c) / (g * d)) = floor((p + floor(c / g)) / d).
        rest = _build({monomial: factor // shared for monomial, factor in rest.terms})
        return add(whole, floor_divide(rest, under // shared))
    nested = _nested(rest, under)
    if nested is not None:
        return add(whole, nested)
    low, high = bounds(rest)
    if low is not None and high is not None and low // under == high // under:
        return add(whole, low // under)
    return add(whole, _of_atom(Atom("floordiv", "", (rest, under))))


def _nested(rest: Dim, under: int) -> Size | None:
    """Fold floor((floor(x / a) + c) / b) into floor((x + a * c) / (a * b))."""
    (monomial, factor), *more = rest.terms
    if len(monomial) != 1 or factor != 1 or (more and more[0][0] != ()):
        return None
    atom = monomial[0]
    if atom.kind != "floordiv":
        return None
    inner, divisor = atom.args
    if not isinstance(divisor, int):
        return None
    constant = more[0][1] if more else 0
    return floor_divide(add(inner, constant * divisor), divisor * under)


def _reduced(over: Size, under: Dim) -> tuple[Size, Size]:
    """Divide both by the largest integer and monomial that all their terms share."""
    both = (*_terms(over), *under.terms)
    shared = gcd(*(factor for _, factor in both))
    common = both[0][0]
    for monomial, _ in both:
        left = list(monomial)
        kept = []
        for atom in common:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        common = tuple(kept)
    if shared <= 1 and not common:
        return over, under
    part = _build({common: shared})
    smaller, divisor = divide_exactly(over, part), divide_exactly(under, part)
    return (over, under) if smaller is None or divisor is None else (smaller, divisor)


def ceil_divide(over: Size, under: int) -> Size:
    """Return the quotient rounded up; `under` > 0."""
    return floor_divide(add(over, under - 1), under)


def remainder(over: Size, under: Size) -> Size:
    """Return Python's `%`: the sign follows the divisor.

    Raises:
        ZeroDivisionError: `under` is 0.
    """
    if under == 0:
        raise ZeroDivisionError("remainder of a size by 0")
    if isinstance(over, int) and isinstance(under, int):
        return over % under
    if divide_exactly(over, under) is not None:
        return 0
    if isinstance(under, int) and under > 0 and isinstance(over, Dim):
        over = _build({monomial: factor % under for monomial, factor in over.terms})
    if isinstance(over, int) and isinstance(under, int):
        return over % under
    if is_at_least(over, 0) and is_at_least(under, add(over, 1)):
        return over
    return _of_atom(Atom("mod", "", (over, under)))


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
    return _of_atom(Atom(kind, "", tuple(sorted(kept, key=_key_of))))


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
    # Where the smaller one is not the larger one, one of them is 1. It is the smaller one,
    # unless a 0 meets a 1.
    for small, large in ((left, right), (right, left)):
        if is_at_least(large, small) and is_at_least(small, minimum(large, 1)):
            return large
    args = {_key_of(size): size for size in _flat("broadcast", (left, right))}
    return _of_atom(Atom("broadcast", "", tuple(args[key] for key in sorted(args))))


def _flat(kind: AtomKind, sizes: Iterable[Size]) -> Iterator[Size]:
    for size in sizes:
        atom = sole_atom(size)
        if atom is not None and atom.kind == kind:
            yield from atom.args
        else:
            yield size


def sole_atom(size: Size) -> Atom | None:
    """Return the atom that `size` is, None for anything else."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    monomial, factor = size.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


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
        return _of_atom(atom)
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


def names(size: Size) -> frozenset[str]:
    """Return the named sizes that `size` depends on."""
    if isinstance(size, int):
        return frozenset()
    return frozenset(atom.label for atom in size.atoms() if atom.kind == "name")


def has_unknown(size: Size) -> bool:
    """Say whether `size` depends on an atom that has no name."""
    return isinstance(size, Dim) and any(atom.kind in ("size", "value") for atom in size.atoms())

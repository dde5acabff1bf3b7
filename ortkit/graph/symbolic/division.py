"""Division of sizes: exact where provable, else an opaque quotient in canonical form.

A divisor is taken not to be 0: the run would have failed.
"""

from __future__ import annotations

from math import gcd

from ortkit.graph.symbolic.bounds import bounds, is_at_least
from ortkit.graph.symbolic.terms import (
    Atom,
    Dim,
    Monomial,
    Size,
    add,
    build,
    multiply,
    of_atom,
    terms_of,
)


def divide_exactly(over: Size, under: Size) -> Size | None:
    """Return the quotient where `over` is provably a multiple of `under`, else None."""
    if under == 0:
        return None
    if isinstance(over, int) and isinstance(under, int):
        return over // under if over % under == 0 else None
    divisor = terms_of(under)
    lead, scale = divisor[0]
    rest, quotient = over, dict[Monomial, int]()
    for _ in range(64):
        if rest == 0:
            return build(quotient)
        monomial, factor = terms_of(rest)[0]
        if factor % scale:
            return None
        left = _without(monomial, lead)
        if left is None:
            return None
        step = factor // scale
        quotient[left] = step
        rest = add(rest, -multiply(under, build({left: step})))
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
    return of_atom(Atom("floordiv", "", (over, under)))


def _floor_divide_by(over: Size, under: int) -> Size:
    if isinstance(over, int):
        return over // under
    # floor((d * q + r) / d) = q + floor(r / d): the rest's factors lie in [0, d).
    whole = build({monomial: factor // under for monomial, factor in over.terms})
    rest = build({monomial: factor % under for monomial, factor in over.terms})
    if isinstance(rest, int):
        return add(whole, rest // under)
    shared = gcd(under, *(factor for monomial, factor in rest.terms if monomial))
    if shared > 1:
        # floor((g * p + c) / (g * d)) = floor((p + floor(c / g)) / d).
        rest = build({monomial: factor // shared for monomial, factor in rest.terms})
        return add(whole, floor_divide(rest, under // shared))
    nested = _nested(rest, under)
    if nested is not None:
        return add(whole, nested)
    low, high = bounds(rest)
    if low is not None and high is not None and low // under == high // under:
        return add(whole, low // under)
    return add(whole, of_atom(Atom("floordiv", "", (rest, under))))


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
    both = (*terms_of(over), *under.terms)
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
    part = build({common: shared})
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
        over = build({monomial: factor % under for monomial, factor in over.terms})
    if isinstance(over, int) and isinstance(under, int):
        return over % under
    if is_at_least(over, 0) and is_at_least(under, add(over, 1)):
        return over
    return of_atom(Atom("mod", "", (over, under)))

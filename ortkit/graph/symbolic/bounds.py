"""What can be proved of a size: bounds, order, difference.

A named or unknown size is >= 0; nothing is assumed to be >= 1.
"""

from __future__ import annotations

from ortkit.graph.symbolic.terms import Atom, AtomKind, Monomial, Size, add, build, multiply


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
    if atom.interval is None:
        atom.interval = _opaque_bounds(atom)
    return atom.interval


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
            rest = build({m: f for m, f in size.terms if m is not monomial})
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

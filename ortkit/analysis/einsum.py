"""Einsum equations: their labels, sizes, and what each label does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from ortkit.graph.symbolic.dims import Size, broadcast


@dataclass(frozen=True)
class Equation:
    """Labels of each operand and of the result, one for each axis, ellipses written out.

    A label is a letter, or a number that counts an axis of an ellipsis from its end.
    """

    terms: tuple[tuple[str, ...], ...]
    out: tuple[str, ...]

    def keeps(self, label: str) -> bool:
        """Say whether the result has this axis."""
        return label in self.out


def read_equation(text: str, ranks: Sequence[int]) -> Equation | None:
    """Read an equation for operands of these ranks, None where they do not fit.

    Source:
        ONNX Einsum-12: without an arrow the result has the ellipsis, then the letters that
        appear once, sorted.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    spares = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    dotted = [spare for term, spare in zip(terms, spares, strict=True) if "..." in term]
    fits = all(
        spare >= 0 and (spare == 0 or "..." in term)
        for term, spare in zip(terms, spares, strict=True)
    )
    if not fits:
        return None
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        once = sorted(letter for letter in letters if letters.count(letter) == 1)
        right = ("..." if dotted else "") + "".join(once)
    named = [_labels(term, spare) for term, spare in zip(terms, spares, strict=True)]
    out = _labels(right, max(dotted, default=0))
    known = {label for term in named for label in term}
    return Equation(tuple(named), out) if set(out) <= known else None


def _labels(term: str, spare: int) -> tuple[str, ...]:
    """Return the labels of a term whose ellipsis, if it has one, stands for `spare` axes."""
    before, dots, after = term.partition("...")
    numbers = [str(count) for count in range(spare, 0, -1)] if dots else []
    return (*before, *numbers, *after)


def sizes_of(
    equation: Equation, shapes: Sequence[Sequence[Size]]
) -> tuple[dict[str, Size], str | None]:
    """Return the size of each label, and a label whose sizes may differ, None if there is none.

    The axes of ellipses broadcast; other axes of one label must be provably of one size.
    """
    found: dict[str, list[Size]] = {}
    for term, shape in zip(equation.terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            found.setdefault(label, []).append(size)
    sizes: dict[str, Size] = {}
    for label, each in found.items():
        if not label.isdigit() and len(set(each)) > 1:
            return {}, label
        try:
            sizes[label] = reduce(broadcast, each)
        except ValueError:
            return {}, label
    return sizes, None


@dataclass(frozen=True)
class Roles:
    """What the labels of two operands do; each in the order of the result, or of the left."""

    batch: tuple[str, ...]
    """In both operands and in the result."""
    rows: tuple[str, ...]
    """In the left operand and in the result only."""
    columns: tuple[str, ...]
    """In the right operand and in the result only."""
    summed: tuple[str, ...]
    """In both operands, and summed over."""


def roles(left: Iterable[str], right: Iterable[str], out: Sequence[str]) -> Roles:
    """Sort the labels of two operands that have no axis to be summed over alone."""
    first, second = tuple(left), tuple(right)
    return Roles(
        tuple(label for label in out if label in first and label in second),
        tuple(label for label in out if label in first and label not in second),
        tuple(label for label in out if label in second and label not in first),
        tuple(label for label in first if label in second and label not in out),
    )

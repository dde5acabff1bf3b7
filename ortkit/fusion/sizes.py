"""Sizes in a region that are equal in every run that does not fail."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import onnx_ir as ir

from ortkit.fusion.families import family_of
from ortkit.graph.dims import Size, sole_atom
from ortkit.rewrite.scope import Scope


def equal_sizes(scope: Scope, nodes: Iterable[ir.Node]) -> dict[Size, Size]:
    """Return what else a size is called, where operands of one node broadcast.

    A table of k rows that is cut to n has min(n, k) of them. Beside n these are n, or the run
    fails: where they are k, and k is not n and not 1, they do not broadcast.
    """
    found: dict[Size, Size] = {}
    for node in nodes:
        if family_of(node) != "pointwise":
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

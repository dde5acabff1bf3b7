"""Families: who looks for regions of one kind, in the order that the target's row names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.select import Accepts
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target

_Nodes: TypeAlias = frozenset[ir.Node]
Find: TypeAlias = Callable[[ir.Graph, _Nodes], Iterator[Candidate]]
"""Yields the candidates of one graph without the nodes of other regions."""


@dataclass(frozen=True)
class Search:
    """What regions of one scope are looked for with.

    Args:
        scope: Rewritten.
        accepts: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        target: What the kernels are for.
    """

    scope: Scope
    accepts: Accepts
    cost: CostModel
    target: Target


Family: TypeAlias = Callable[[Search], Find]


def per_graph(
    find: Callable[[Scope, ir.Graph, Accepts, CostModel, _Nodes], Iterator[Candidate]],
) -> Family:
    """Return the family of a function that keeps nothing from one graph to the next."""

    def family(search: Search) -> Find:
        return lambda graph, excluded: find(
            search.scope, graph, search.accepts, search.cost, excluded
        )

    return family

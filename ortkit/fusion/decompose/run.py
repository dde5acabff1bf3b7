"""Decompositions around the search for regions: each in a transaction, undone if it was no use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

import onnx_ir as ir

from ortkit.fusion.attention.cuda import attention_region
from ortkit.fusion.regions.cost_model import cost_model_of
from ortkit.fusion.regions.duplicate import Accepts
from ortkit.fusion.regions.lower import drop_unread
from ortkit.fusion.regions.search import Search
from ortkit.refusal import RefusedError
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site
from ortkit.rewrite.transaction import Transaction

Wanted: TypeAlias = Callable[[Scope, ir.Node], bool]
"""Says of a node whether a kernel is faster with it."""


@dataclass(frozen=True)
class Surroundings:
    """What is known when a model's decompositions are chosen.

    Args:
        accepts: Says why there would be no kernel for a region.
        excluded: Nodes that have kernels already.
        has_layout: Whether the provider's convolutions get another layout; see `advise`.
    """

    accepts: Accepts
    excluded: frozenset[ir.Node]
    has_layout: bool

    def takes_attention(self, scope: Scope, node: ir.Node) -> bool:
        """Say whether an attention would be a region, as it stands."""
        assert isinstance(node.graph, ir.Graph)
        search = Search(scope, node.graph, self.accepts, cost_model_of(scope))
        return attention_region(search, node).signature is not None


@dataclass(frozen=True)
class Decomposition(NodePass):
    """Writes an operator in parts that fuse better; `RefusedError` undoes what was begun."""

    @classmethod
    def of(cls, around: Surroundings) -> Self | None:  # noqa: ARG003
        """Return it for a model, or None if it has no place there."""
        return cls()

    def find(self, scope: Scope) -> Iterator[ir.Node]:
        """Yield the nodes of the main graph that it looks at; earlier ones are rewritten then."""
        for node in list(scope.root):
            kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            if node.graph is not None and kind in self.ops:
                yield node

    def finish(self, scope: Scope) -> None:
        """Let what could not be undone be valid where no kernel computes it."""


@contextmanager
def decomposed(scopes: Sequence[Scope], decompositions: Sequence[Decomposition]) -> Iterator[None]:
    """Decompose main graphs; at the end what no region took a part of is undone.

    Args:
        scopes: Whose graphs are looked at; bodies of functions are left.
        decompositions: In the order in which they run.
    """
    graphs = [scope for scope in scopes if not scope.is_function]
    done = [
        each for item in decompositions for scope in graphs for each in _transactions(item, scope)
    ]
    try:
        yield
    finally:
        for transaction in reversed(done):
            if transaction.can_undo() is None:
                transaction.undo()
        for scope in graphs if decompositions else ():
            for decomposition in decompositions:
                decomposition.finish(scope)
            drop_unread(scope)


def _transactions(decomposition: Decomposition, scope: Scope) -> Iterator[Transaction]:
    for node in decomposition.find(scope):
        try:
            with scope.transaction() as transaction:
                decomposition.rewrite(Site(scope, node, decomposition.name))
        except RefusedError:
            continue
        if not transaction.is_empty:
            yield transaction

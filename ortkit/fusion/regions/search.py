"""One search for regions in one graph; families, in the order of the target's row, make it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.duplicate import Accepts, Candidate
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.region import PASS, FusedRegion, region_of
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: Where a packed constant says in `ir.Value.meta` what it stands for.
PACKED = "ortkit.packed"


#: A region with its signature.
Described: TypeAlias = tuple[FusedRegion, RegionSignature]


@dataclass
class Search:
    """What regions of one graph are looked for with.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        accepts: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        excluded: Nodes of other regions; gets those of each region that is found.
        packed: Constants in the layout of a kernel, by what tells them apart; all graphs of a
            scope have the same.
        settle: Given a region that would be taken; returns it without its signature if it is not.
        in_place: Whether nodes are replaced where they stand. Elsewhere a kernel may see a tensor
            under other sizes: reshapes before, in or behind a region cost nothing.
    """

    scope: Scope
    graph: ir.Graph
    accepts: Accepts
    cost: CostModel
    excluded: set[ir.Node] = field(default_factory=set)
    packed: dict[Hashable, ir.Value] = field(default_factory=dict)
    settle: Callable[[Candidate], Candidate] = lambda candidate: candidate
    in_place: bool = True

    def nodes(self) -> Iterator[ir.Node]:
        """Yield the graph's nodes that are in no region by then, in order."""
        return (node for node in self.graph if node not in self.excluded)

    def region(self, nodes: Iterable[ir.Node], kind: str) -> FusedRegion:
        """Return the region of `nodes`, which stand in any order."""
        ordered = sorted(set(nodes), key=self._indices.__getitem__)
        return replace(region_of(self.scope, ordered), kind=kind)

    def described(self, nodes: Sequence[ir.Node], kind: str = "") -> Described:
        """Return the region of `nodes`, which are in topological order, and its signature.

        Its kind is what it computes, if none is given.
        """
        region = region_of(self.scope, nodes)
        region = replace(region, kind=kind or region.kind)
        return region, describe_region(self.scope, region)

    def first(self, choices: Iterable[Described]) -> Described | Candidate:
        """Return the first choice that has a kernel; else why not the last."""
        last: Candidate | None = None
        for region, signature in choices:
            verdict = self.accepts(signature)
            if verdict is None:
                return region, signature
            last = refused(region, verdict.reason)
        assert last is not None
        return last

    def judged(
        self, region: FusedRegion, prediction: Prediction, signature: RegionSignature | None = None
    ) -> Candidate:
        """Return a region as a candidate; it is taken if it pays and has a kernel.

        `signature` is the region's where the nodes as they stand do not describe it.
        """
        if reason := self.cost.refusal(region, prediction):
            return Candidate(region, None, prediction, reason)
        signature = signature or describe_region(self.scope, region)
        verdict = self.accepts(signature)
        if verdict is not None:
            return refused(region, verdict.reason)
        return self.take(region, signature, prediction)

    def priced(
        self, region: FusedRegion, signature: RegionSignature, prediction: Prediction
    ) -> Candidate:
        """Return a region that has a kernel as a candidate; it is taken if it pays."""
        if reason := self.cost.refusal(region, prediction):
            return Candidate(region, None, prediction, reason)
        return self.take(region, signature, prediction)

    def take(
        self, region: FusedRegion, signature: RegionSignature, prediction: Prediction
    ) -> Candidate:
        """Return a region that is taken if `settle` says so."""
        settle = self.settle(Candidate(region, signature, prediction, ""))
        if settle.signature is not None:
            self.excluded.update(region.nodes)
        return settle

    def miss(self, node: ir.Node, reason: str) -> None:
        """Let the log say why a node is in no region."""
        outputs = tuple(value.name or "" for value in node.outputs)
        self.scope.log.miss(PASS, describe(node), reason, outputs)

    def constant(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return the constant that `key` stands for: `tensor` if it is not there yet."""
        if key not in self.packed:
            self.packed[key] = detached_constant(tensor, name)
            self.packed[key].meta[PACKED] = key
        return self.packed[key]

    @cached_property
    def level(self) -> str:
        """The level of the target's processors, or its architectures."""
        return self.scope.target.resolved().level

    @cached_property
    def _indices(self) -> dict[ir.Node, int]:
        return {node: index for index, node in enumerate(self.graph)}


def alone(kind: str, node: ir.Node) -> FusedRegion:
    """Return the region of a node of which little is known."""
    return FusedRegion(kind, (node,), (), (node.outputs[0],))


def refused(region: FusedRegion, reason: str) -> Candidate:
    """Return a region that has no kernel."""
    return Candidate(region, None, Prediction(0.0, 0.0), reason)

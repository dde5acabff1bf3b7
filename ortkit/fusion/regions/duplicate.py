"""Cheap nodes that several regions read: each region computes them for itself.

What they make is then neither written nor read, and a view of a tensor is read in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.region import FusedRegion, region_of
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: This many regions may compute one pointwise node, or one view, which costs them nothing.
POINTWISE_READERS, VIEW_READERS = 2, 4
#: Pointwise nodes of more operations are computed once.
CHEAP = 6


@dataclass(frozen=True)
class Candidate:
    """A region, and what was decided about it."""

    region: FusedRegion
    signature: RegionSignature | None
    """None if it is not taken."""
    prediction: Prediction
    reason: str
    """Why it is not taken, empty if it is."""


Accepts: TypeAlias = Callable[[RegionSignature], Refused | None]
"""Says why there would be no kernel for a region."""


def asked_once(accepts: Accepts) -> Accepts:
    """Return `accepts` with a memory: the layers of a model have equal regions."""
    known: dict[object, Refused | None] = {}

    def verdict(signature: RegionSignature) -> Refused | None:
        # Names of tensors are for messages only.
        tensors = (*signature.inputs, *signature.outputs)
        key = signature.body, tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        if key not in known:
            known[key] = accepts(signature)
        return known[key]

    return verdict


def with_recomputed(
    scope: Scope, found: Sequence[Candidate], accepts: Accepts, cost: CostModel
) -> list[Candidate]:
    """Return the candidates with cheap nodes in all regions that read them.

    A node that begins a region, or is one, goes where all its readers are in regions that are
    taken. Kernels can hold it in each of them, and all together are predicted to take less than
    before. No cycle can arise: what the node reads came before these regions already.
    """
    return _Recomputing(scope, found, accepts, cost).run()


class _Recomputing:
    def __init__(
        self, scope: Scope, found: Sequence[Candidate], accepts: Accepts, cost: CostModel
    ) -> None:
        self._scope = scope
        self._accepts = accepts
        self._cost = cost
        self._kept = dict(enumerate(found))
        self._order = {node: index for index, node in enumerate(_graph_nodes(found))}
        self._owners = {
            node: [number]
            for number, candidate in self._kept.items()
            for node in candidate.region.nodes
        }

    def run(self) -> list[Candidate]:
        owners = [
            (number, node)
            for number, candidate in self._kept.items()
            for node in candidate.region.nodes
        ]
        for number, node in reversed(owners):
            if number in self._kept and self._begins(self._kept[number], node):
                self._spread(number, node)
        return list(self._kept.values())

    def _begins(self, candidate: Candidate, node: ir.Node) -> bool:
        """Say whether the node begins a region that is taken, or is one by itself."""
        if node in candidate.region.recomputed or (
            candidate.signature is None and len(candidate.region.nodes) > 1
        ):
            return False
        inside = set(candidate.region.nodes)
        return not any(value is not None and value.producer() in inside for value in node.inputs)

    def _spread(self, number: int, node: ir.Node) -> None:
        """Put the node into all regions that read it, where that is allowed and pays."""
        readers = self._readers(number, node)
        if readers is None:
            return
        involved = dict.fromkeys([number, *readers])
        grown = {reader: self._grown(self._kept[reader], node) for reader in readers}
        after = sum(each.prediction.after_ns for each in grown.values())
        if after >= sum(_now_ns(self._kept[each]) for each in involved):
            return
        signatures = [each.signature for each in grown.values()]
        if any(each is None or self._accepts(each) is not None for each in signatures):
            return
        self._kept |= grown
        self._owners[node] = readers
        if number not in grown:
            del self._kept[number]

    def _readers(self, number: int, node: ir.Node) -> list[int] | None:
        """Return the regions that read the node; None if others do, or it is not cheap enough."""
        access = access_of(node)
        if access not in ("elementwise", "view"):
            return None
        if access == "elementwise" and self._cost.operations(node) > CHEAP:
            return None
        readers: dict[int, None] = {}
        for value in node.outputs:
            if value.is_graph_output():
                return None
            for use in value.uses():
                found = self._owners.get(use.node, ())
                if not found or any(self._kept[each].signature is None for each in found):
                    return None
                readers.update(dict.fromkeys(found))
        limit = VIEW_READERS if access == "view" else POINTWISE_READERS
        if set(readers) <= {number} or len(readers) > limit:
            return None
        if access == "elementwise" and any(self._repeats(node, each) for each in readers):
            return None
        return list(readers)

    def _repeats(self, node: ir.Node, reader: int) -> bool:
        """Say whether a region would compute each element of the node several times."""
        made = self._cost.elements(node.outputs[0])
        return any(self._cost.elements(v) > made for v in self._kept[reader].region.outputs)

    def _grown(self, candidate: Candidate, node: ir.Node) -> Candidate:
        nodes = sorted({node, *candidate.region.nodes}, key=self._order.__getitem__)
        region = region_of(self._scope, nodes, candidate.region.recomputed | {node})
        signature = describe_region(self._scope, region)
        prediction = self._cost.predict(region)
        return replace(candidate, region=region, signature=signature, prediction=prediction)


def _now_ns(candidate: Candidate) -> float:
    prediction = candidate.prediction
    return prediction.before_ns if candidate.signature is None else prediction.after_ns


def _graph_nodes(found: Sequence[Candidate]) -> Sequence[ir.Node]:
    """Return all nodes of the graph that the regions are in."""
    graph = found[0].region.nodes[0].graph if found else None
    return () if graph is None else tuple(graph)

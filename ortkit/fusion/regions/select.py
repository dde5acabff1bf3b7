"""From the groups of a graph to the regions that a kernel can compute, and that pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.duplicate import Candidate, with_recomputed
from ortkit.fusion.regions.members import is_reshape
from ortkit.fusion.regions.parameters import looks_up_rows
from ortkit.fusion.regions.partition import partition
from ortkit.fusion.regions.region import FusedRegion, components, region_of
from ortkit.fusion.regions.search import Search
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

#: A region that reads and makes more tensors is cut.
MAX_TENSORS = 32
#: How many cut points are tried for one cut before a group is halved.
MAX_CUTS = 12


def family(search: Search) -> Iterator[Candidate]:
    """Yield the regions of one graph that are taken and those that are not.

    No two share a node but what both compute, and all taken ones may become nodes together. What
    may not be a member leaves its reason in the log, as do the cut points where groups were cut.
    """
    found = partition(search.scope, search.graph, search.excluded)
    for node, reason in found.refused:
        search.miss(node, reason)
    chooser = _Chooser(search)
    settled = [item for group in found.groups for item in chooser.settle(group)]
    for candidate in with_recomputed(search.scope, settled, chooser.verdict, search.cost):
        yield candidate if candidate.signature is None else search.settle(candidate)


class _Chooser:
    def __init__(self, search: Search) -> None:
        self._search = search
        self._scope = search.scope
        self._cost = search.cost
        self._costs = search.cost, search.cost.of_one_sample()

    def settle(self, nodes: Sequence[ir.Node]) -> Iterator[Candidate]:
        """Yield what becomes of the parts of `nodes`; those that no kernel can hold are cut."""
        for part in _parts(nodes):
            if all(looks_up_rows(self._scope, node) for node in part):
                continue  # rows that nothing is computed of: ONNX Runtime's
            region = region_of(self._scope, part)
            prediction, reason = self._predict(region)
            if reason:
                yield Candidate(region, None, prediction, reason)
                continue
            signature = describe_region(self._scope, region)
            verdict = self.verdict(signature)
            if verdict is None:
                yield Candidate(region, signature, prediction, "")
            elif len(part) == 1:
                yield Candidate(region, None, prediction, verdict.reason)
            else:
                cut_point = self._cut(part)
                self._search.miss(part[cut_point], f"a region was cut here: {verdict.reason}")
                yield from self.settle(part[:cut_point])
                yield from self.settle(part[cut_point:])

    def _predict(self, region: FusedRegion) -> tuple[Prediction, str | None]:
        """Return the times of a region, and why it does not pay; None if it does.

        A region pays if it does for many samples or for one, where their number is not known.
        """
        predictions = [(cost, cost.predict(region)) for cost in self._costs]
        found = [(times, cost.refusal(region, times)) for cost, times in predictions]
        return next((each for each in found if each[1] is None), found[0])

    def verdict(self, signature: RegionSignature) -> Refused | None:
        """Say why no kernel would be built."""
        tensors = (*signature.inputs, *signature.outputs)
        if len(tensors) > MAX_TENSORS:
            return Refused(f"{len(tensors)} inputs and outputs, more than {MAX_TENSORS}")
        return self._search.accepts(signature)

    def _cut(self, nodes: tuple[ir.Node, ...]) -> int:
        """Return where to cut: the cheapest index that leaves parts that kernels can hold.

        Where none does, the index that leaves the largest such part.
        """
        count = len(nodes)
        cut_points = _cut_points(nodes)
        cut_points.sort(key=lambda index: -max(index, count - index))
        cut_points = sorted(cut_points[:MAX_CUTS], key=lambda index: self._cut_ns(nodes, index))
        sound: list[tuple[int, int]] = []
        for index in cut_points:
            lengths = [len(side) for side in (nodes[:index], nodes[index:]) if self._holds(side)]
            if len(lengths) == 2:
                return index
            sound += [(size, index) for size in lengths]
        return max(sound)[1] if sound else count // 2

    def _cut_ns(self, nodes: tuple[ir.Node, ...], index: int) -> float:
        """Return what both sides of a cut take as kernels, predicted."""
        sides = (*_parts(nodes[:index]), *_parts(nodes[index:]))
        return sum(self._cost.predict(region_of(self._scope, side)).after_ns for side in sides)

    def _holds(self, nodes: tuple[ir.Node, ...]) -> bool:
        """Say whether kernels can hold all parts of `nodes`."""
        regions = (region_of(self._scope, part) for part in _parts(nodes))
        return all(
            self.verdict(describe_region(self._scope, region)) is None for region in regions
        )


def _parts(nodes: Sequence[ir.Node]) -> list[tuple[ir.Node, ...]]:
    """Return the connected parts without reshapes at their ends, which are better left outside."""
    return [part for trimmed in components(nodes) for part in components(_trimmed(trimmed))]


def _trimmed(nodes: tuple[ir.Node, ...]) -> tuple[ir.Node, ...]:
    kept = dict.fromkeys(nodes)
    for node in nodes:
        if is_reshape(node) and not _reads_from(node, kept):
            del kept[node]
    for node in reversed(nodes):
        if node in kept and is_reshape(node) and not _feeds(node, kept):
            del kept[node]
    return tuple(kept)


def _reads_from(node: ir.Node, kept: dict[ir.Node, None]) -> bool:
    return any(value is not None and value.producer() in kept for value in node.inputs)


def _feeds(node: ir.Node, kept: dict[ir.Node, None]) -> bool:
    return any(use.node in kept for value in node.outputs for use in value.uses())


def _cut_points(nodes: Sequence[ir.Node]) -> list[int]:
    """Return where a group may be cut; in a large one only beside what is not pointwise."""
    if len(nodes) <= MAX_CUTS:
        return list(range(1, len(nodes)))
    plain = [access_of(node) == "elementwise" for node in nodes]
    return [
        index
        for index in range(1, len(nodes))
        if not (plain[index] and plain[index - 1]) or index == len(nodes) // 2
    ]

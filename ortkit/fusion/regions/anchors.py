"""Regions around the anchors of templates, grown by what these declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.growth import epilogue_steps, operand_makers, producers_of
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Described, Search, alone, refused
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load
from ortkit.targets.target import Target

#: The heavy operator, the last, and what has to be in front of it; regions around them, the
#: largest first.
Choices: TypeAlias = tuple[Sequence[ir.Node], Iterable[Described]]


def grown(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each region of one graph around an anchor.

    Only the end of such a region is read by others, and it reads nothing that depends on it.
    """
    if not search.level.startswith(anchor.level):
        return
    if anchor.regions:
        yield from load(anchor.regions)(search, anchor)
    else:
        yield from around(search, anchor, partial(regions_around, anchor, search))


def around(
    search: Search, anchor: Anchor, find: Callable[[ir.Node], Choices | Refused | None]
) -> Iterator[Candidate]:
    """Yield a candidate for each node of one graph that a region may be grown around.

    Args:
        search: The graph's.
        anchor: Of the template.
        find: Returns the regions around a node, None for nodes that are no heavy operator.
    """
    for node in search.nodes():
        found = find(node)
        if isinstance(found, Refused):
            yield refused(alone(anchor.kind or node.op_type.lower(), node), found.reason)
        elif found is not None:
            core, choices = found
            candidate = search.first(choices)
            yield (
                candidate
                if isinstance(candidate, Candidate)
                else candidate_of(search, anchor, core, *candidate)
            )


def is_for(target: Target, signature: RegionSignature) -> bool:
    """Say whether a region that a template would compute is one for a target's processors."""
    level, name = target.resolved().level, f"{signature.name}_"
    anchors: Iterator[Anchor] = map(load, target.traits.families)
    fitting = (anchor for anchor in anchors if name.startswith(f"{anchor.kind}_"))
    return all(level.startswith(item.level) for item in fitting)


def regions_around(anchor: Anchor, search: Search, node: ir.Node) -> Choices | Refused | None:
    """Return the regions around a node; None if it is none of the anchor's."""
    before = _before(search, anchor, node)
    if before is None:
        return None
    if anchor.in_place and not search.in_place:
        return Refused("sizes of results that follow from values")
    if not _is_known(search.scope, node):
        return Refused("operands of unknown shape")
    choices = _choices(search, anchor, node, before)
    return (*before, node), (search.described(nodes, anchor.kind) for nodes in choices)


def candidate_of(
    search: Search,
    anchor: Anchor,
    core: Sequence[ir.Node],
    region: FusedRegion,
    signature: RegionSignature,
) -> Candidate:
    """Return a region that has a kernel as a candidate; selected if it is faster, or has to be.

    Args:
        search: The graph's.
        anchor: Of the template.
        core: The heavy operator, the last, and what has to be in front of it.
        region: Around it.
        signature: The region's.
    """
    matched = anchor.match and anchor.match(signature)
    if matched is None or isinstance(matched, Refused):
        return refused(region, "its kernel is not that of the template whose anchor it has")
    index = region.nodes.index(core[-1])
    prologue = [node for node in region.nodes[:index] if node not in core]
    prediction = search.cost.around(
        matched.estimate(search.scope.target.resolved().level),
        prologue,
        region.nodes[index + 1 :],
        anchor.batch,
    )
    if anchor.weight_in_session:
        region = _with_weight_in_session(search, region, core[-1])
    # Without a kernel a rounding would cost, and gain nothing.
    is_rounded = any(each.op_type == "Cast" for each in region.nodes)
    select = search.priced if anchor.must_pay and not is_rounded else search.take
    return select(region, signature, prediction)


def _before(search: Search, anchor: Anchor, node: ir.Node) -> Sequence[ir.Node] | None:
    """Return what has to be in front of a node; None if no region is grown around it."""
    if (node.domain, node.op_type) not in anchor.operators:
        return None
    scope, (x, weight) = search.scope, (*node.inputs, None, None)[:2]
    if x is None or _dtype(scope, x) != anchor.dtype:
        return None
    if anchor.rank not in (0, scope.shapes.rank(x)):
        return None
    found: list[ir.Node] = []
    for index, op_types in anchor.before.items():
        made = producers_of(node.inputs[index], op_types)
        if made is None or not search.excluded.isdisjoint(made):
            return None
        found += made
        weight = made[0].inputs[0] if index == 1 else weight
    if not anchor.weight:
        return found
    is_constant = weight is not None and scope.is_constant(weight)
    fits = weight is not None and is_constant and _dtype(scope, weight) == anchor.weight
    return found if fits else None


def _dtype(scope: Scope, value: ir.Value) -> str:
    dtype = scope.shapes.dtype(value)
    return "" if dtype is None else dtype.numpy().name


def _is_known(scope: Scope, node: ir.Node) -> bool:
    values = [value for value in (*node.inputs, node.outputs[0]) if value is not None]
    return all(scope.shapes.shape(value) is not None and _dtype(scope, value) for value in values)


def _choices(
    search: Search, anchor: Anchor, node: ir.Node, before: Sequence[ir.Node]
) -> Iterator[Sequence[ir.Node]]:
    """Yield a node with as much around it as can be, then with less: at last with `before`."""
    scope, shapes = search.scope, search.scope.shapes
    shape = shapes.shape(node.outputs[0])

    def is_step(one: ir.Node, *_: ir.Value) -> bool:
        if one.graph is not node.graph or one in search.excluded or len(one.outputs) != 1:
            return False
        if anchor.epilogue is not None and (one.domain or one.op_type not in anchor.epilogue):
            return False
        return access_of(one) == "elementwise" and shapes.shape(one.outputs[0]) == shape

    steps = epilogue_steps(scope, node.outputs[0], is_step, is_step, anchor.longest)
    fronts = [before]
    for op_types in (anchor.prologue & {"Cast"}, anchor.prologue):
        found = operand_makers(node, partial(_may_be_prologue, search, op_types))
        if found and [*before, *found] != fronts[0]:
            fronts.insert(0, [*before, *found])
    for front in fronts:
        for count in range(len(steps), -1, -1):
            yield *front, node, *(item for step in steps[:count] for item in step)


def _may_be_prologue(search: Search, op_types: frozenset[str], node: ir.Node) -> bool:
    """Say whether a node may be absorbed: of sums those of a bias that no Gemm adds."""
    if node.op_type not in op_types or node in search.excluded:
        return False
    if node.op_type != "Add":
        return True
    scope = search.scope
    rows = [value for value in node.inputs if value is not None and scope.shapes.rank(value) == 1]
    return any(map(scope.is_constant, rows)) and not search.cost.is_gemm_bias(node)


def _with_weight_in_session(search: Search, region: FusedRegion, node: ir.Node) -> FusedRegion:
    """Let a session hold the weight where nodes do not stay: it may be as large as a library."""
    weight = node.inputs[1]
    if search.in_place or weight is None or weight.const_value is None:
        return region
    key, name = (region.kind, weight), f"{weight.name}/held"
    weight_in_session = search.constant(key, name, weight.const_value)
    inputs = tuple(weight_in_session if value is weight else value for value in region.inputs)
    return replace(region, inputs=inputs)

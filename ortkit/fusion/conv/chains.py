"""Chains of blocks that stay in NHWC from one to the next, and which of them pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.analysis.transposed_resize import REASON, breaks_resize
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import Described
from ortkit.fusion.conv.borders import borders
from ortkit.fusion.conv.cost import ChainCost
from ortkit.fusion.conv.finder import PASS
from ortkit.fusion.conv.targets import ConvTarget, describe_block, target_of
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.log import DENIED
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: How often blocks are found again without those that were refused.
MOST_ROUNDS = 6
#: A chain is one rewrite, named by the result of its last block.
RULE = "nhwc"
_AGAIN = "a block was refused"
#: Why a Concat is left to ONNX Runtime.
_BETTER_SPLIT = "without it the convolutions around it gain more by NHWC"


@dataclass(frozen=True)
class Chain:
    """Blocks in order, each fed by others or from outside.

    Args:
        blocks: What becomes a node each.
        described: Their signatures and weights; empty if the chain is not taken.
        cost: Of all of them.
        reason: Why it is not taken, empty if it is.
    """

    blocks: tuple[Block, ...]
    described: tuple[Described, ...]
    cost: ChainCost
    reason: str
    spared: tuple[ir.Node, ...] = ()
    """Transposes around the blocks that go with them."""

    @property
    def nodes(self) -> frozenset[ir.Node]:
        """All nodes that go."""
        return frozenset([*(node for block in self.blocks for node in block.nodes), *self.spared])

    @property
    def signatures(self) -> dict[str, RegionSignature]:
        """The kernels that are wanted, by key."""
        return {each.signature.key: each.signature for each in self.described}


def find_chains(
    scope: Scope,
    graph: ir.Graph,
    accepts: Callable[[RegionSignature], Refused | None],
    *,
    spares: bool = True,
) -> list[Chain]:
    """Return the chains of a graph, those that are not taken too.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        accepts: Says why there would be no kernel for a signature.
        spares: Whether Transposes around a chain may go away with it.
    """
    target = target_of(scope)
    refused: set[ir.Node] = set()
    separate: set[ir.Node] = set()
    chains: list[Chain] = []
    for _ in range(MOST_ROUNDS):
        blocks = target.find(scope, graph, frozenset(refused), frozenset(separate))
        groups = _connected(blocks)
        chains = [
            _judged(scope, target, group, accepts, refused, separate, spares=spares)
            for group in groups
        ]
        if not any(chain.reason == _AGAIN for chain in chains):
            return chains
    return [chain for chain in chains if chain.reason != _AGAIN]


def _judged(
    scope: Scope,
    target: ConvTarget,
    blocks: list[Block],
    accepts: Callable[[RegionSignature], Refused | None],
    refused: set[ir.Node],
    separate: set[ir.Node],
    *,
    spares: bool,
) -> Chain:
    """Return the group as a chain; adds to `refused`, or to `separate` what stays out of it."""
    around = borders(blocks, spares=spares and target.spares)
    cost = target.chain_cost(scope, blocks, around)
    if parting := _parting(scope, target, blocks, spares=spares):
        for block in parting:
            outputs = (block.output.name or "",)
            scope.log.miss(PASS, describe(block.convs[0]), _BETTER_SPLIT, outputs)
        refused.update(block.convs[0] for block in parting)
        return Chain(tuple(blocks), (), cost, _AGAIN)
    reason = "" if cost.pays else f"not predicted to gain {cost.least_in_words} of its time"
    if around.changed and all(block.alone for block in blocks):
        # Of several threads one transposes, and all compute what is left to ONNX Runtime.
        reason = f"{blocks[0].alone} alone are not worth another layout"
    if reason:
        return Chain(tuple(blocks), (), cost, reason)
    made = {value for block in blocks for value in block.results}
    if breaks_resize(value for value in around.changed if value in made):
        return Chain(tuple(blocks), (), cost, REASON)
    if scope.log.is_denied(PASS, RULE, blocks[-1].output.name or ""):
        return Chain(tuple(blocks), (), cost, DENIED)
    described = [describe_block(scope, block) for block in blocks]
    verdicts = [accepts(each.signature) for each in described]
    for block, verdict in zip(blocks, verdicts, strict=True):
        if verdict is not None:
            if block.parts:
                separate.add(block.convs[0])
            else:
                refused.update(block.convs)
            outputs = (block.convs[0].outputs[0].name or "",)
            scope.log.miss(PASS, describe(block.convs[0]), verdict.reason, outputs)
    reason = _AGAIN if any(verdict is not None for verdict in verdicts) else ""
    kept = () if reason else tuple(described)
    return Chain(tuple(blocks), kept, cost, reason, around.spared)


def _parting(
    scope: Scope, target: ConvTarget, blocks: list[Block], *, spares: bool
) -> list[Block]:
    """Return the Concats of a group without which what is left gains more, as several chains.

    Each is looked at once, given what was decided about those before it.
    """

    def gain(some: list[Block]) -> float:
        costs = [
            target.chain_cost(scope, group, borders(group, spares=spares and target.spares))
            for group in _connected(some)
        ]
        return sum(cost.before - cost.after for cost in costs if cost.pays)

    kept, parting = blocks, list[Block]()
    most = None
    for block in (each for each in blocks if each.kind == "concat"):
        most = gain(kept) if most is None else most
        fewer = [each for each in kept if each is not block]
        if (without := gain(fewer)) > most:
            kept, most = fewer, without
            parting.append(block)
    return parting


def _connected(blocks: list[Block]) -> list[list[Block]]:
    """Group blocks of which one reads the other's result."""
    makers = {value: index for index, block in enumerate(blocks) for value in block.results}
    group = list(range(len(blocks)))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for index, block in enumerate(blocks):
        for value in block.operands:
            if value in makers:
                group[root(makers[value])] = root(index)
    found: dict[int, list[Block]] = {}
    for index, block in enumerate(blocks):
        found.setdefault(root(index), []).append(block)
    return list(found.values())

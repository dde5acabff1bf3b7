"""Chains of blocks that stay in NHWC on CUDA from one to the next, and which of them pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.cuda_conv_blocks import PASS, Block, find_blocks
from ortkit.fusion.cuda_conv_bodies import Described, describe_block
from ortkit.fusion.cuda_conv_cost import ChainCost, chain_cost
from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: How often blocks are found again without those that were refused.
MOST_ROUNDS = 6
#: A chain is one rewrite, named by the result of its last block.
RULE = "nhwc"
_AGAIN = "a block was refused"


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

    @property
    def nodes(self) -> frozenset[ir.Node]:
        """All nodes that go."""
        return frozenset(node for block in self.blocks for node in block.nodes)

    @property
    def signatures(self) -> dict[str, RegionSignature]:
        """The kernels that are wanted, by key."""
        return {each.signature.key: each.signature for each in self.described}


def find_chains(
    scope: Scope, graph: ir.Graph, judge: Callable[[RegionSignature], Refused | None]
) -> list[Chain]:
    """Return the chains of a graph, those that are not taken too.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a signature.
    """
    refused: set[ir.Node] = set()
    chains: list[Chain] = []
    for _ in range(MOST_ROUNDS):
        blocks = find_blocks(scope, graph, frozenset(refused))
        chains = [_judged(scope, group, judge, refused) for group in _connected(blocks)]
        if not any(chain.reason == _AGAIN for chain in chains):
            break
    return [chain for chain in chains if chain.reason != _AGAIN]


def _judged(
    scope: Scope,
    blocks: list[Block],
    judge: Callable[[RegionSignature], Refused | None],
    refused: set[ir.Node],
) -> Chain:
    """Return the group as a chain; adds to `refused` what no kernel is made for."""
    cost = chain_cost(scope, blocks, borders(blocks))
    if not cost.pays:
        reason = "not predicted to gain a tenth of its time"
        return Chain(tuple(blocks), (), cost, reason)
    if scope.log.is_denied(PASS, RULE, blocks[-1].output.name or ""):
        return Chain(tuple(blocks), (), cost, "rolled back, or denied by its id")
    described = [describe_block(scope, block) for block in blocks]
    reason = ""
    for block, each in zip(blocks, described, strict=True):
        if (verdict := judge(each.signature)) is not None:
            first = block.convs[0] if block.convs else block.nodes[0]
            refused.update(block.convs or block.nodes)
            outputs = (first.outputs[0].name or "",)
            scope.log.miss(PASS, describe(first), verdict.reason, outputs)
            reason = _AGAIN
    return Chain(tuple(blocks), () if reason else tuple(described), cost, reason)


def borders(blocks: list[Block]) -> list[ir.Value]:
    """Return the values that enter or leave NHWC, but for means, which have one layout."""
    made = {block.output for block in blocks}
    inside = frozenset(node for block in blocks for node in block.nodes)
    entering = [
        value
        for block in blocks
        for value in block.operands
        if value not in made and not (block.is_planar and value is block.source)
    ]
    leaving = [
        block.output
        for block in blocks
        if block.kind != "global_mean" and is_read_outside(block, inside)
    ]
    return list(dict.fromkeys(entering + leaving))


def is_read_outside(block: Block, inside: frozenset[ir.Node]) -> bool:
    """Say whether anything reads a result but the nodes `inside`."""
    readers = (use.node for use in block.output.uses())
    return block.output.is_graph_output() or not all(node in inside for node in readers)


def _connected(blocks: list[Block]) -> list[list[Block]]:
    """Group blocks of which one reads the other's result."""
    makers = {block.output: index for index, block in enumerate(blocks)}
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

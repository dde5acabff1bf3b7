"""Chains of convolution blocks in the plan of a model: found first, put back first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ortkit.fusion.conv.chains import Chain
from ortkit.fusion.conv.lower import lower_chain
from ortkit.fusion.conv.targets import target_of
from ortkit.fusion.regions.report import RegionReport, op_types
from ortkit.rewrite.scope import Scope


def settle_chain(
    scope: Scope,
    chain: Chain,
    refused: Mapping[str, str],
    replaced: dict[ir.Value, ir.Value],
) -> Iterator[RegionReport]:
    """Put a chain back if it is taken and all of its kernels are there; report each block.

    Args:
        scope: The chain's.
        chain: As it was found.
        refused: By the key of a signature, why there is no kernel for it.
        replaced: Gets what stands for each result that others read.
    """
    reason = chain.reason
    if not reason:
        reason = next((refused[key] for key in chain.signatures if key in refused), "")
    target = target_of(scope)
    costs = [target.block_cost(scope, block) for block in chain.blocks]
    names = [block.output.name or "" for block in chain.blocks]  # before others get them
    ops = [op_types(block.nodes) for block in chain.blocks]
    if not reason and not lower_chain(scope, chain, replaced):
        reason = "rolled back or out of fuel"
    for number, (block, cost) in enumerate(zip(chain.blocks, costs, strict=True)):
        emitted = "" if reason else chain.described[number].signature.op_type
        yield RegionReport(
            kind=block.kind,
            at=names[number],
            nodes=len(block.nodes),
            emitted_as=emitted or None,
            reason=reason,
            inputs=len(block.operands),
            outputs=len(block.results) + block.pooled,
            predicted_before_ns=round(cost.before),
            predicted_after_ns=round(cost.after),
            ops=ops[number],
        )

"""Heavy groups and the nodes of the original that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortkit.provider.own.anchored_groups import AnchoredGroup
from ortkit.provider.own.assembly import Known
from ortkit.provider.own.claim_set import Claim, ClaimSet, Declined
from ortkit.provider.own.subgraph_cut import Cuts
from ortkit.refusal import Refused


def heavy_claims(
    groups: Iterable[Sequence[AnchoredGroup | Refused]], known: Known, cuts: Cuts
) -> tuple[ClaimSet, frozenset[ir.Node]]:
    """Return what is claimed of heavy groups, and the copy's nodes that these stand for.

    Args:
        groups: For each what it may become; the first that can be claimed is.
        known: The values of the original.
        cuts: Of the original.
    """
    claims: list[Claim] = []
    declined: list[Declined] = []
    owned: set[ir.Node] = set()
    taken: set[ir.Node] = set()
    for choices in groups:
        reasons: list[Declined] = []
        for one in choices:
            found = _claim(one, known, cuts, owned)
            if isinstance(found, Claim) and isinstance(one, AnchoredGroup):
                claims.append(replace(found, bundle=len(claims) + 1))
                owned.update(found.nodes)
                taken |= one.nodes
                break
            assert isinstance(found, Refused)
            reasons.append(_declined(one, found))
        else:
            declined += reasons[:1]
    return ClaimSet(tuple(claims), tuple(declined)), frozenset(taken)


def _claim(
    one: AnchoredGroup | Refused, known: Known, cuts: Cuts, owned: set[ir.Node]
) -> Claim | Refused:
    if isinstance(one, Refused):
        return one
    for value in (*one.inputs, *one.outputs):
        if not known.has(value):
            return Refused(f"{value.name!r} is no value of the model as it was handed over")
    inputs = tuple(value.name or "" for value in one.inputs)
    outputs = tuple(value.name or "" for value in one.outputs)
    cut = cuts.find(inputs, outputs)
    if isinstance(cut, Refused):
        return cut
    if not owned.isdisjoint(cut.nodes):
        return Refused("nodes of it belong to another group")
    return Claim(
        outputs[-1], one.program, cut.nodes, inputs, outputs, one.prediction, one.regions,
        weights=one.weights, origins=one.origins,
    )  # fmt: skip


def _declined(one: AnchoredGroup | Refused, refused: Refused) -> Declined:
    if isinstance(one, Refused):
        return Declined("", "convolutions or product", refused.reason)
    return Declined(one.regions[-1], one.program.name, refused.reason)

"""skip-padding: an encoder computes the tokens of a batch that are no padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.ops.padding.attention import AttentionSite, attention_site, flags_for
from ortkit.ops.padding.emit import pack_nodes
from ortkit.ops.padding.pack import plan_of
from ortkit.ops.padding.proof import Proof
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: What is inserted needs no older version.
_SINCE = 13


@dataclass(frozen=True)
class SkipPadding(GraphPass):
    """Compute what padding cannot change for the other tokens alone.

    Before:
        h = MatMul(x, w)                        # [samples, positions, width]
        a = Attention(h, h, h, mask)            # mask leaves keys out where flag is 0
        y = ReduceSum(Mul(a, flag), [1])
    After:
        i = NonZero(flag != 0);  p = the place of each token among these
        h = MatMul(Gather(x, i), w)             # [1, tokens, width]
        a = Attention(Gather(h, p), ..., mask)

    All samples are one of as many positions as there are tokens. Keys are put back before an
    attention, where those of padding are masked. A sample that has no key to see keeps all tokens.

    Skips:
        * Padding that reaches a result: as an output of all positions, or a mean without a mask.
        * Attention that is not recognised, or whose keys are not masked by one value.

    Source:
        ByteTransformer (Zhai et al., 2023), "zero padding"; Effective Transformer (2020).
    """

    name: ClassVar[str] = "skip-padding"

    def run(self, scope: Scope) -> None:
        if scope.is_function or any(hit.pass_name == self.name for hit in scope.log.hits):
            return
        sites = [
            site
            for node in scope.root
            if (site := attention_site(scope, node)) is not None and site.mask is not None
        ]
        done: set[ir.Value | None] = set()
        for site in sites:
            if site.mask not in done:
                done |= {site.mask, *self._pack(scope, site)}

    def _pack(self, scope: Scope, site: AttentionSite) -> set[ir.Value | None]:
        """Pack what one attention's mask says; return the masks that are done with."""
        about = describe(site.node)
        reason = "its mask does not say of each key whether it is padding"
        for flag in flags_for(scope, site):
            proof = Proof.of(scope, flag)
            masks = {each.mask for each in proof.attention.values()}
            plan = plan_of(proof)
            is_read = all(node.outputs[0] not in proof.unread for node in proof.attention)
            if is_read or not plan.is_worth_it:
                reason = _reason(proof, site)
                continue
            if scope.opset() < _SINCE:
                scope.log.miss(self.name, about, f"opset {_SINCE} is needed")
                return masks
            name = flag.value.name or ""
            if scope.log.claim(self.name, "tokens", name, about):
                pack_nodes(proof, plan)
            return masks
        if reason:
            scope.log.miss(self.name, about, reason)
        return set()


def _reason(proof: Proof, site: AttentionSite) -> str:
    """Return why nothing is packed; empty if there is nothing to pack."""
    value = site.node.outputs[0]
    found = proof.reasons.get(value) or next(iter(proof.reasons.values()), "")
    return f"padding reaches a result: {found}" if found else ""

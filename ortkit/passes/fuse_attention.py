"""fuse-attention: softmax(scale * Q K^T + mask) V, however it is written, becomes one op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.ops.attention import emit, mask_emit
from ortkit.ops.attention.find import find_core
from ortkit.ops.attention.forms import choose_form
from ortkit.ops.attention.mask_values import Facts
from ortkit.ops.attention.projections import find_projections
from ortkit.ops.attention.rotary import find_rotary
from ortkit.ops.attention.sizes import measure_elsewhere
from ortkit.ops.attention.understand import understand
from ortkit.ops.attention.understood import Attention
from ortkit.refusal import RefusedError
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class FuseAttention(GraphPass):
    """Recognize attention from its Softmax outward and write it as an attention op.

    Before:
        s = Add(Mul(MatMul(q, k_transposed), scale), mask)
        y = MatMul(Softmax(s), v)       # with Reshape and Transpose around heads
    After:
        y = Attention(q3, k3, v3, mask) # [B, S, H * D], q_num_heads, kv_num_heads, scale

    Scale, mask, cap, layout, repeated heads and caches may be written in any way that has the
    same meaning. A mask that is causal at every size is dropped for an attribute.

    Skips:
        * Scores or probabilities that others read, and masks that depend on single scores.
        * Element types other than float32 and float16: no kernel takes them on every provider.
        * What would change the result of queries that see no key.

    Sizes at run time are one or more: ONNX Runtime's ops refuse empty batches, queries and keys.
    Integers that a mask is made from are taken for flags, 0 or 1.

    Source:
        Vaswani and others, "Attention Is All You Need" (2017); ONNX Attention-23.
    """

    name: ClassVar[str] = "fuse-attention"

    def run(self, scope: Scope) -> None:
        facts = Facts(scope)
        for node in list(scope.nodes()):
            if node.graph is None or node.op_type != "Softmax" or node.domain != "":
                continue
            site = Site(scope, node, self.name)
            try:
                self._fuse(site, facts)
            except RefusedError as refusal:
                site.miss(refusal.refused.reason)

    def _fuse(self, site: Site, facts: Facts) -> None:
        core = find_core(site)
        attention, form = understand(site, facts, core, choose_form)
        last = core.result.producer()
        assert last is not None
        there = Site(site.scope, last, self.name)
        if not there.claim(form):
            return
        measure_elsewhere(there, core, attention.heads, facts)
        made = _make(there, attention, form, facts)
        there.replace(emit.result(there, attention, made), attention.heads.result.value)


def _make(site: Site, attention: Attention, form: str, facts: Facts) -> ir.Value:
    """Insert the op, with what its operands need, and return its output."""
    heads = attention.heads
    if form == "packed-attention":
        projections = find_projections(site, heads.query, heads.key, heads.value)
        assert projections is not None, "the form was chosen for them"
        mask = mask_emit.bias(site, attention, facts)
        return emit.packed_attention(site, attention, projections, mask)
    if form == "group-query-attention":
        return emit.grouped_query_attention(site, attention, find_rotary(site, heads), facts)
    if form == "multi-head-attention":
        return emit.multi_head_attention(site, attention, mask_emit.bias(site, attention, facts))
    return emit.onnx_attention(site, attention, mask_emit.standard(site, attention, facts))

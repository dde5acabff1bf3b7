"""fuse-attention: softmax(scale * Q K^T + mask) V, however it is written, becomes one op."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import onnx_ir as ir

from ortkit.ops.attention import emit, mask_emit
from ortkit.ops.attention.core import Core, RefusalError
from ortkit.ops.attention.facts import Facts
from ortkit.ops.attention.find import find_core
from ortkit.ops.attention.forms import choose_form
from ortkit.ops.attention.heads import arrangements
from ortkit.ops.attention.masks import read_mask
from ortkit.ops.attention.projections import find_projections
from ortkit.ops.attention.rotary import find_rotary
from ortkit.ops.attention.sizes import check_sizes, measure_elsewhere
from ortkit.ops.attention.understood import Attention
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class FuseAttention(GraphPass):
    """Recognize attention from its Softmax outward and write it as an attention op.

    Before:
        s = Add(Mul(MatMul(q, k_transposed), scale), mask)
        y = MatMul(Softmax(s), v)       # with Reshape and Transpose around heads
    After:
        y = Attention(q3, k3, v3, mask) # [B, S, H * D], q_num_heads, kv_num_heads, scale

    Scale, mask, cap, layout, repeated heads and caches may be written in any way that has the
    same meaning; a mask that is causal at every size is dropped for an attribute.

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
            except RefusalError as refusal:
                site.miss(refusal.reason)

    def _fuse(self, site: Site, facts: Facts) -> None:
        core = find_core(site)
        dtype = _dtype(site, core)
        if len(core.gains) > 1:
            raise RefusalError("its scores are scaled by several factors that are no numbers")
        if any(site.shape(gain.scores) != site.shape(core.scores) for gain in core.gains):
            raise RefusalError("its scores are scaled per head in another shape")
        attention, form = _understood(site, facts, core, dtype)
        last = core.result.producer()
        assert last is not None
        there = Site(site.scope, last, self.name)
        if not there.claim(form):
            return
        measure_elsewhere(there, core, attention.heads, facts)
        made = _make(there, attention, form, facts)
        there.replace(emit.result(there, attention, made), attention.heads.result.value)


def _dtype(site: Site, core: Core) -> ir.DataType:
    """Return the element type to compute in.

    Raises:
        RefusalError: There is none that is as precise as what is written.
    """
    written = site.dtype(core.scores)
    if written not in DTYPES:
        raise RefusalError("only float32 and float16 have an attention kernel")
    if core.precision in (None, written):
        return written
    if core.precision != ir.DataType.FLOAT:
        raise RefusalError("its Softmax works in another precision than its product")
    if site.scope.target.kind == "cpu":
        return ir.DataType.FLOAT
    if core.masks_in_precision:
        raise RefusalError("it is masked in another precision than its product's")
    # On CUDA every kernel's Softmax works in float32.
    return written


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
    mask = mask_emit.condition(site, attention, facts)
    if mask is None:
        keeps_nan = attention.mask.may_give_nan and not attention.core.zeroes_nan
        mask = mask_emit.bias(site, attention, facts, keeps_nan=keeps_nan)
    return emit.onnx_attention(site, attention, mask)


def _understood(site: Site, facts: Facts, core: Core, dtype: ir.DataType) -> tuple[Attention, str]:
    """Return the cheapest arrangement that an op takes, with its mask, and the op.

    Raises:
        RefusalError: With the reason of the first arrangement.
    """
    first: RefusalError | None = None
    found = arrangements(site, core)
    if site.scope.target.kind == "cuda":
        found = chain(found, arrangements(site, core, shares=False))
    last = core.result.producer()
    assert last is not None
    there = Site(site.scope, last, site.pass_name)
    for heads in found:
        try:
            check_sizes(there, core, heads, facts)
            operands = (core.query, core.key, core.value)
            is_cast = any(site.dtype(each) != dtype for each in operands)
            mask = read_mask(site, facts, core, heads)
            attention = Attention(core, heads, mask, dtype, is_cast)
            return attention, choose_form(site, attention)
        except RefusalError as refusal:
            first = first or refusal
    assert first is not None
    raise first

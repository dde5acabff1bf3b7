"""Which op an attention becomes: what computes it on the target, and what is fast there.

The times behind the choice are ONNX Runtime 1.31.1's: on CPU the default domain's Attention with
three axes takes 0.7 to 0.9 of the written form's time up to 512 positions; on an H100
MultiHeadAttention is 1.3 to 1.8 times as fast as it from 512 positions on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import onnx_ir as ir

from ortkit.ops.attention.projections import find_projections
from ortkit.ops.attention.rotary import find_rotary
from ortkit.ops.attention.understood import Attention, deepest
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site

Form = Literal["attention", "multi-head-attention", "group-query-attention", "packed-attention"]
#: The default domain has Attention from this version on.
ATTENTION_SINCE = 23
#: ONNX Runtime's Attention on CPU takes 3 to 5 times as long as the parts of one that caps its
#: scores, of 129 or 512 positions, and 1.3 times for a single query (Emerald Rapids, one thread).
CAPS_SINCE_LEVEL = 3
#: A score added to this is lost, so that adding and choosing are the same; by element type.
ABSORBING = {ir.DataType.FLOAT: -1e9, ir.DataType.FLOAT16: -6e4}
#: From this many positions on it pays on CPU that GroupQueryAttention skips what causality masks:
#: 0.6 of the time at 2048, nothing gained at 512.
LONG = 1024


def choose_form(site: Site, attention: Attention) -> Form:
    """Choose the op.

    Raises:
        RefusedError: None computes this attention on the target.
    """
    check_meaning(attention)
    reasons = []
    for form in _in_order(site, attention):
        reason = _why_not(site, attention, form)
        if reason is None:
            return form
        reasons.append(reason)
    raise RefusedError("; ".join(dict.fromkeys(reasons)))


def check_meaning(attention: Attention) -> None:
    """See to it that ops compute what is written, also where a query sees no key.

    Raises:
        RefusedError: They do not.
    """
    if attention.is_cast and attention.heads.caches is not None:
        raise RefusedError("its Softmax works in float32 and its cache is float16")
    mask = attention.mask
    is_lost = mask.highest_fill <= ABSORBING[attention.dtype] or deepest(attention) is not None
    if not (mask.keeps_rows or is_lost):
        raise RefusedError(
            f"queries that see no key differ by the {mask.highest_fill:g} that scores are set to"
        )
    if not attention.scale > 0:
        raise RefusedError(f"its scale is {attention.scale:g}, and ops take positive ones")


def _in_order(site: Site, attention: Attention) -> Iterator[Form]:
    """Yield the forms worth trying, the best one first."""
    heads = attention.heads
    is_shared = heads.kv_heads != heads.heads
    if site.scope.options.level >= 3:
        yield "packed-attention"
        if is_shared or find_rotary(site, heads) is not None:
            yield "group-query-attention"
    if site.traits.prefers_multi_head_attention:
        if is_shared or attention.core.softcap:
            yield "group-query-attention"
        yield "multi-head-attention"
    elif isinstance(heads.queries, int) and heads.queries >= LONG:
        yield "group-query-attention"
    elif _is_costly(attention):
        yield "multi-head-attention"
    yield "attention"
    yield "multi-head-attention"


def _why_not(site: Site, attention: Attention, form: Form) -> str | None:
    """Return why `form` does not compute this attention on the target, None if it does."""
    if form == "packed-attention":
        return _why_not_packed(site, attention)
    if form == "group-query-attention":
        return _why_not_grouped(site, attention)
    if form == "multi-head-attention":
        return _why_not_multi_head(site, attention)
    traits = site.traits
    if attention.core.softcap and not traits.attention_caps_scores:
        return f"Attention does not cap its scores on {traits.title}"
    if attention.core.softcap and site.scope.options.level < CAPS_SINCE_LEVEL:
        return "Attention that caps its scores is slower than its parts"
    if attention.heads.kv_heads != attention.heads.heads and not traits.attention_shares_heads:
        return f"Attention shares no heads on {traits.title} in every type"
    if not site.scope.require_opset(ATTENTION_SINCE):
        return f"Attention needs opset {ATTENTION_SINCE}"
    return None


def _why_not_packed(site: Site, attention: Attention) -> str | None:
    heads, mask = attention.heads, attention.mask
    is_zeroed = mask.may_give_nan and attention.core.zeroes_nan
    if heads.caches is not None or heads.kv_heads != heads.heads or attention.core.softcap:
        return "com.microsoft's Attention shares no heads, caps nothing and keeps no cache here"
    if heads.form != "3d" or attention.dtype != ir.DataType.FLOAT or attention.is_cast:
        return "com.microsoft's Attention takes float32 with three axes"
    if is_zeroed and mask.differs_by_head:
        return "queries that see no key differ by head"
    if attention.core.gains:
        return "its scores are scaled by more than a number"
    if find_projections(site, heads.query, heads.key, heads.value) is None:
        return "its operands are no linear layers of one value"
    return None


def _why_not_grouped(site: Site, attention: Attention) -> str | None:
    heads = attention.heads
    if attention.core.gains:
        return "its scores are scaled by more than a number"
    if attention.is_cast:
        return "GroupQueryAttention is not given casts"
    if heads.caches is not None or not attention.mask.is_causal or heads.form != "3d":
        return "GroupQueryAttention is causal, has three axes, and keeps no cache here"
    if not isinstance(heads.head_size, int) or heads.head_size % 8:
        return "GroupQueryAttention's head size is a multiple of 8"
    if heads.value_size != heads.head_size or heads.queries != heads.keys:
        return "GroupQueryAttention has as many keys as queries, of one size"
    if not site.has_kernel("GroupQueryAttention", attention.dtype):
        return f"GroupQueryAttention takes float16 on {site.traits.title}"
    return None


def _is_costly(attention: Attention) -> bool:
    """Say whether Attention's mask would need a look at every score of every layer."""
    mask = attention.mask
    return mask.may_give_nan and not attention.core.zeroes_nan and mask.differs_by_head


def _why_not_multi_head(site: Site, attention: Attention) -> str | None:
    heads = attention.heads
    if attention.mask.may_give_nan and attention.core.zeroes_nan:
        return "a query that sees no key gives zero as written and NaN in MultiHeadAttention"
    if heads.kv_heads != heads.heads:
        return "MultiHeadAttention has as many key heads as query heads"
    if attention.core.softcap:
        return "MultiHeadAttention does not cap its scores"
    if heads.caches is not None and heads.value_size != heads.head_size:
        return "MultiHeadAttention's caches have one head size"
    if heads.form != "3d":
        return "MultiHeadAttention takes three axes"
    if not site.has_kernel("MultiHeadAttention", attention.dtype):
        dtype = attention.dtype.name.lower()
        return f"MultiHeadAttention has no {dtype} kernel on {site.traits.title}"
    return None

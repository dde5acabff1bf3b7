"""From an attention as it is written to one that is understood, in the cheapest arrangement."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import onnx_ir as ir

from ortkit.ops.attention.core import Core
from ortkit.ops.attention.heads import arrangements
from ortkit.ops.attention.mask_values import Facts
from ortkit.ops.attention.masks import read_mask
from ortkit.ops.attention.sizes import check_sizes
from ortkit.ops.attention.understood import Attention
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

Chosen = TypeVar("Chosen")


def computed_in(site: Site, core: Core) -> ir.DataType:
    """Return the element type to compute in.

    Raises:
        RefusedError: There is none that is as precise as what is written.
    """
    written = site.dtype(core.scores)
    if written not in DTYPES:
        raise RefusedError("only float32 and float16 have an attention kernel")
    if core.precision in (None, written):
        return written
    if core.precision != ir.DataType.FLOAT:
        raise RefusedError("its Softmax works in another precision than its product")
    if site.traits.attention_rounds_softmax:
        return ir.DataType.FLOAT
    if core.masks_in_precision:
        raise RefusedError("it is masked in another precision than its product's")
    return written


def understand(
    site: Site, facts: Facts, core: Core, choose: Callable[[Site, Attention], Chosen]
) -> tuple[Attention, Chosen]:
    """Return the cheapest arrangement that an op takes, with its mask, and what was chosen.

    Args:
        site: The attention's Softmax.
        facts: Where sizes can be taken from.
        core: The attention as it is written.
        choose: Returns what computes it, or raises RefusedError.

    Raises:
        RefusedError: With the reason of the first arrangement.
    """
    dtype = computed_in(site, core)
    if len(core.gains) > 1:
        raise RefusedError("its scores are scaled by several factors that are no numbers")
    if any(site.shape(gain.scores) != site.shape(core.scores) for gain in core.gains):
        raise RefusedError("its scores are scaled per head in another shape")
    first: RefusedError | None = None
    found = arrangements(site, core)
    if not site.traits.attention_shares_heads:
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
            return attention, choose(site, attention)
        except RefusedError as refusal:
            first = first or refusal
    assert first is not None
    raise first

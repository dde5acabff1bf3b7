"""The steps by which regions grow behind an int8 product, in the order that they are tried in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from ortkit.fusion.int8.byte_steps import add_by_operator, add_quantized, dequantize, look_up
from ortkit.fusion.int8.chain import Chain, Step
from ortkit.fusion.int8.float_steps import apply_pointwise, quantize, quantize_channels
from ortkit.fusion.int8.products import find_product
from ortkit.fusion.regions.anchors import Choices, around
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.kernels.anchor import Anchor
from ortkit.refusal import Refused

#: Nodes of the longest chain that is tried.
_LONGEST = 24
#: Shorter chains that are tried where a kernel does not take the longest.
_TRIED = 4
_ON_FLOATS: tuple[Step, ...] = (quantize, quantize_channels, apply_pointwise)
_ON_BYTES: tuple[Step, ...] = (add_quantized, add_by_operator, look_up, dequantize)


def grow(chain: Chain, *last: Step) -> None:
    """Let a chain go on as far as it can.

    Args:
        chain: It ends with the product, or behind what rounds that.
        last: Further steps on float32, tried after all others.
    """
    while len(chain.nodes) < _LONGEST and not chain.is_complete:
        steps = (*_ON_FLOATS, *last) if chain.grid is None else _ON_BYTES
        if not any(step(chain) for step in steps):
            return


def regions(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each int8 matrix product of one graph."""
    return around(search, anchor, partial(_regions, search))


def _regions(search: Search, node: ir.Node) -> Choices | Refused | None:
    """Return the regions around an int8 matrix product; None for other nodes."""
    product = find_product(search.scope, node)
    if product is None or not search.excluded.isdisjoint(product.nodes):
        return None
    chain = Chain(search.scope, product, search.excluded, search.constant)
    grow(chain)
    return product.nodes, map(chain.region, chain.ends[::-1][:_TRIED])

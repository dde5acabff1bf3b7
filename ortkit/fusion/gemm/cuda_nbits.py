"""Regions of products with weights in 4 bits on CUDA: MatMulNBits with what follows.

A region is one product, or two of the same rows that meet, as in gated linear units. Kernels read
matrices before the launch before them has ended, so that these have to be constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import onnx_ir as ir

from ortkit.fusion.gemm.cuda import epilogue_chain_of, token_norm
from ortkit.fusion.regions.anchors import candidate_of, regions_around
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Described, Search, alone, refused
from ortkit.kernels.anchor import Anchor
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: Inputs of MatMulNBits: weights, scales and zeros.
_MATRIX = slice(1, 4)
_SIZES = "K", "N", "bits", "block_size"


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph, pairs as one."""
    for node in search.nodes():
        choices = regions_around(anchor, search, node)
        if choices is None:
            continue
        if not _is_constant(search.scope, node):
            choices = Refused("a matrix that is no constant")
        if isinstance(choices, Refused):
            yield refused(alone(anchor.kind, node), choices.reason)
            continue
        core, described = choices
        found = _pair(search, anchor, node)
        if found is None:
            first = search.first(described)
            found = first if isinstance(first, Candidate) else _taken(search, anchor, core, first)
        yield found


def _taken(search: Search, anchor: Anchor, core: Sequence[ir.Node], found: Described) -> Candidate:
    """Return a region as a candidate, with the norm before it where one row has it within."""
    region, _ = found
    readers = [node for node in region.nodes if node.op_type == core[-1].op_type]
    norm = token_norm(search.scope, readers, search.excluded)
    if norm is not None:
        whole = search.region((norm, *region.nodes), anchor.kind)
        normed = search.first([search.described(whole.nodes, anchor.kind)])
        if not isinstance(normed, Candidate):
            found = normed
    return candidate_of(search, anchor, core, *found)


def _pair(search: Search, anchor: Anchor, node: ir.Node) -> Candidate | None:
    """Return a gated pair that a kernel computes; None if there is none."""
    chain = epilogue_chain_of(search.scope, node, search.excluded, partial(_is_equal, node))
    if len(chain.products) == 1:
        return None
    region = search.region(chain.nodes, anchor.kind)
    found = search.first([search.described(region.nodes, anchor.kind)])
    if isinstance(found, Candidate):
        return None
    return _taken(search, anchor, (node,), found)


def _is_equal(node: ir.Node, scope: Scope, other: ir.Node) -> bool:
    """Say whether a product may be the other one of a pair."""
    if (other.domain, other.op_type) != (node.domain, node.op_type):
        return False
    return _is_constant(scope, other) and all(
        other.attributes.get_int(name, 0) == node.attributes.get_int(name, 0) for name in _SIZES
    )


def _is_constant(scope: Scope, node: ir.Node) -> bool:
    return all(value is None or scope.is_constant(value) for value in node.inputs[_MATRIX])

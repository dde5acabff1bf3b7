"""Regions of split-K matmuls with a fused sum and norm on CUDA.

A GEMM with small M and N and large K fills few thread blocks. Split-K gives each block a part of
K. The block that reduces the partial sums holds complete rows and applies the norm.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.fusion.gemm.cuda import (
    epilogue_chain_of,
    is_product,
    is_transposed,
    predict,
    sizes_of,
)
from ortkit.fusion.regions.access import only_reader
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.kernels.anchor import Anchor
from ortkit.rewrite.scope import Scope

_SKIPS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_SUM = 3


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph with a skip norm behind."""
    scope = search.scope
    for node in search.nodes():
        if not is_product(scope, node) or is_transposed(node):
            continue
        chain = epilogue_chain_of(scope, node, search.excluded)
        norm = _norm_consumer(scope, chain.output)
        if norm is None or norm in search.excluded or norm.graph is not search.graph:
            continue
        prediction = predict(scope, anchor, sizes_of(scope, chain, None))
        if len(chain.products) == 1 and prediction is not None:
            yield search.judged(
                search.region([node, *chain.epilogue, norm], anchor.kind), prediction
            )


def _norm_consumer(scope: Scope, value: ir.Value) -> ir.Node | None:
    """Return the skip norm that is the only consumer of a value, if both terms have the same
    shape."""
    node = only_reader(value)
    if node is None or node.domain != "com.microsoft" or node.op_type not in _SKIPS:
        return None
    if value not in node.inputs[:2]:
        return None
    terms = [item for item in node.inputs[:2] if item is not None]
    if len(terms) != 2 or not scope.shapes.same_shape(*terms):
        return None
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:_SUM]):
        return None
    return node

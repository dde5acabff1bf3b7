"""Regions of products of a few rows with the sum and norm behind them on CUDA.

Where rows and columns are few and the depth is large, few blocks would walk through all of it: its
parts go to blocks of their own, and who adds them up has whole rows, and does the norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.choose import Judge
from ortkit.fusion.cost import CostModel
from ortkit.fusion.cuda_product_cost import predict_joined
from ortkit.fusion.cuda_products import (
    candidate_of,
    is_product,
    is_read_once,
    is_turned,
    line_behind,
    shape_of,
)
from ortkit.fusion.recompute import Candidate
from ortkit.fusion.regions import region_of
from ortkit.rewrite.scope import Scope

KIND = "product_norm"
_SKIPS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_SUM = 3


def joined_candidates(
    scope: Scope,
    graph: ir.Graph,
    judge: Judge,
    cost: CostModel,
    taken: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph with a skip norm behind; none share a node.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        taken: Nodes of other regions.
    """
    own = set(taken)
    for node in graph:
        if node in own or not is_product(scope, node) or is_turned(node):
            continue
        line = line_behind(scope, node, own)
        norm = _norm_behind(scope, line.output)
        if norm is None or norm in own or norm.graph is not graph or len(line.products) > 1:
            continue
        nodes = [node, *line.tail, norm]
        shape = shape_of(scope, line, None)
        prediction = predict_joined(shape)
        if prediction is None:
            continue
        region = replace(region_of(scope, nodes), kind=KIND)
        one = candidate_of(scope, region, prediction, judge, cost)
        if one.signature is not None:
            own.update(nodes)
        yield one


def _norm_behind(scope: Scope, value: ir.Value) -> ir.Node | None:
    """Return the skip norm that alone reads a value, the other term being of its shape."""
    if not is_read_once(value):
        return None
    node = next(iter(value.uses())).node
    if node.domain != "com.microsoft" or node.op_type not in _SKIPS:
        return None
    if value not in node.inputs[:2]:
        return None
    terms = [one for one in node.inputs[:2] if one is not None]
    if len(terms) != 2 or not scope.shapes.same_shape(*terms):
        return None
    if any(one.uses() or one.is_graph_output() for one in node.outputs[1:_SUM]):
        return None
    return node

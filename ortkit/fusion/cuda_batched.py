"""Regions of products on CUDA whose matrices are many, or computed, with what follows them.

Experts of a mixture (each rows of its own, or all the same), blocks on a diagonal, masks made of
queries and pixels, similarities: a MatMul of which the right factor is no constant matrix, or one
matrix for each of the leading dims, and the line of pointwise nodes behind it. Two that meet are
one region. What swaps the last two axes of a factor is read through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.choose import Judge
from ortkit.fusion.cost import CostModel
from ortkit.fusion.cuda_product_cost import Shape
from ortkit.fusion.cuda_products import (
    HALVES,
    KIND,
    Line,
    candidate_of,
    is_product,
    line_behind,
    turn_before,
)
from ortkit.fusion.cuda_tiled_cost import predict_batched
from ortkit.fusion.recompute import Candidate
from ortkit.fusion.regions import region_of
from ortkit.rewrite.scope import Scope

_MATRIX = 2


def batched_candidates(
    scope: Scope,
    graph: ir.Graph,
    judge: Judge,
    cost: CostModel,
    taken: frozenset[ir.Node] = frozenset(),
) -> Iterator[Candidate]:
    """Yield a candidate for each such product of one graph that may be faster; none share a node.

    Args:
        scope: The graph's.
        graph: Whose nodes are looked at.
        judge: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        taken: Nodes of other regions.
    """
    places = {node: place for place, node in enumerate(graph)}
    own = set(taken)
    for node in graph:
        if node in own or not is_batched(scope, node):
            continue
        line = line_behind(scope, node, own, is_batched)
        prediction = predict_batched(_shape_of(scope, line))
        if prediction is None:
            continue
        flip = turn_before(node, 0)
        nodes = sorted({*line.nodes, *(() if flip is None else (flip,))}, key=places.__getitem__)
        region = replace(region_of(scope, nodes), kind=KIND)
        own.update(line.products)
        one = candidate_of(scope, region, prediction, judge, cost)
        if one.signature is not None:
            own.update(nodes)
        yield one


def is_batched(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node multiplies matrices in half precision, and not rows by a constant one."""
    if node.domain or node.op_type != "MatMul" or is_product(scope, node):
        return False
    factors = [one for one in node.inputs if one is not None]
    shapes = [scope.shapes.shape(one) for one in (*factors, node.outputs[0])]
    if any(shape is None or len(shape) < _MATRIX for shape in shapes):
        return False
    left, right, result = (shape or () for shape in shapes)
    if not isinstance(left[-1], int) or not isinstance(result[-1], int):
        return False
    if any(scope.shapes.dtype(one) not in HALVES for one in factors):
        return False
    # A Transpose without `perm` turns all axes round.
    turns = [(turn_before(node, place), shape) for place, shape in enumerate((left, right))]
    return all(
        turn is None or "perm" in turn.attributes or len(shape) == _MATRIX for turn, shape in turns
    )


def _shape_of(scope: Scope, line: Line) -> Shape:
    """Return the sizes of a line, of which its time depends."""
    product = line.products[0]
    left, right = (scope.shapes.shape(one) or () for one in product.inputs if one is not None)
    result = scope.shapes.shape(product.outputs[0]) or ()
    depth, columns = left[-1], result[-1]
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    # A single matrix has the rows of all leading dims.
    is_one = len(right) == _MATRIX and turn_before(product, 0) is None
    count, rows = _number(result[:-2]), _number(result[-2:-1])
    if is_one:
        count, rows = 1, None if count is None or rows is None else count * rows
    return Shape(rows, depth, columns, len(line.products), len(line.tail), False, count)


def _number(sizes: Sequence[object]) -> int | None:
    """Return the product of sizes; None where one is not known."""
    made = 1
    for size in sizes:
        if not isinstance(size, int):
            return None
        made *= size
    return made

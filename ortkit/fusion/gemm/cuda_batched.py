"""Regions of products on CUDA that are batched or have computed operands, with their epilogue.

Experts of a mixture (each rows of its own, or all the same), blocks on a diagonal, masks made of
queries and pixels, similarities: a MatMul of which the right factor is no constant matrix, or one
matrix for each of the leading dims, and the epilogue of pointwise nodes. A gated pair is one
region. What swaps the last two axes of a factor is read through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.gemm.cuda import (
    HALF_DTYPES,
    EpilogueChain,
    epilogue_chain_of,
    is_product,
    known_product,
    operand_transpose_of,
    predict,
    sizes_of,
)
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search, refused
from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.rewrite.scope import Scope

_MATRIX = 2


def products(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each such product of one graph that may be faster."""
    scope = search.scope
    for node in search.nodes():
        if not is_batched(scope, node):
            continue
        chain = epilogue_chain_of(scope, node, search.excluded, is_batched)
        prediction = predict(scope, anchor, _sizes_of(scope, chain))
        if prediction is None:
            continue
        flip = operand_transpose_of(node, 0)
        region = search.region({*chain.nodes, *(() if flip is None else (flip,))}, anchor.kind)
        if flip is None and _has_one_row_kernel(scope, node):
            yield refused(region, "one row would read its matrix while that is computed")
            continue
        search.excluded.update(chain.products)
        yield search.judged(region, prediction)


def is_batched(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node multiplies matrices in half precision, and not rows by a constant one."""
    if node.domain or node.op_type != "MatMul" or is_product(scope, node):
        return False
    factors = [value for value in node.inputs if value is not None]
    shapes = [scope.shapes.shape(factor) for factor in (*factors, node.outputs[0])]
    if any(shape is None or len(shape) < _MATRIX for shape in shapes):
        return False
    left, right, result = (shape or () for shape in shapes)
    if not isinstance(left[-1], int) or not isinstance(result[-1], int):
        return False
    if any(scope.shapes.dtype(item) not in HALF_DTYPES for item in factors):
        return False
    # A Transpose without `perm` reverses all axes.
    transposes = [
        (operand_transpose_of(node, index), shape) for index, shape in enumerate((left, right))
    ]
    return all(
        turn is None or "perm" in turn.attributes or len(shape) == _MATRIX
        for turn, shape in transposes
    )


def _has_one_row_kernel(scope: Scope, product: ir.Node) -> bool:
    """Say whether a product's kernel reads its matrix before the launch before it has ended.

    The kernel of one row does (`custom_ops/triton/gemm/gemv.py`), which one row, and rows of an
    unknown number, get with one matrix [columns, depth]. A computed matrix may not be there yet.
    """
    right, result = product.inputs[1], scope.shapes.shape(product.outputs[0]) or ()
    if right is None or scope.shapes.rank(right) != _MATRIX:
        return False
    return known_product(result[:-1]) in (None, 1) and operand_transpose_of(product) is not None


def _sizes_of(scope: Scope, chain: EpilogueChain) -> ProductSizes:
    """Return the sizes of a chain that its time depends on."""
    product, found = chain.products[0], sizes_of(scope, chain, None)
    right, result = product.inputs[1], scope.shapes.shape(product.outputs[0]) or ()
    assert right is not None
    if scope.shapes.rank(right) == _MATRIX and operand_transpose_of(product, 0) is None:
        return found  # a single matrix has the rows of all leading dims
    return replace(found, rows=known_product(result[-2:-1]), count=known_product(result[:-2]))

"""Regions of products with weights in 4 or 8 bits: MatMulNBits, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortkit.fusion.gemm.cpu_bf16 import epilogue_nodes
from ortkit.fusion.regions.cost_model import Prediction, nominal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.rewrite.scope import Scope

KIND = "matmul_nbits"

#: Of a byte of weights and scales on one thread (EPYC with Zen 4, 2026-11-27): for one row ONNX
#: Runtime's kernel reads 13.6 GB/s, ours 20.
_RUNTIME_NS_PER_BYTE, _OURS_NS_PER_BYTE = 1 / 13.6, 1 / 20
#: Of a multiply-add of many rows there: ONNX Runtime's at 138 GOP/s, ours at 250.
_RUNTIME_NS, _OURS_NS = 2 / 138, 2 / 250


def family(search: Search) -> Iterator[Candidate]:
    """Yield a candidate for each product of one graph with a weight in 4 or 8 bits."""
    scope = search.scope
    for node in search.nodes():
        if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
            continue
        if scope.shapes.shape(node.outputs[0]) is None:
            continue
        epilogue = epilogue_nodes(scope, node, search.taken)
        lengths = range(len(epilogue), -1, -1)
        found = search.first(([node, *epilogue[:count]] for count in lengths), KIND)
        if not isinstance(found, Candidate):
            found = search.take(*found, _predict(scope, node))
        yield found


def _predict(scope: Scope, product: ir.Node) -> Prediction:
    """Return what the product alone takes; sizes that are not known are nominal."""
    shape = scope.shapes.shape(product.outputs[0])
    assert shape is not None
    depth, columns, block = (
        product.attributes[name].as_int() for name in ("K", "N", "block_size")
    )
    rows = 1.0
    for size in shape[:-1]:
        rows *= nominal(size)
    bits = product.attributes.get_int("bits", 4)
    read = columns * (depth * bits / 8 + 4 * depth / block)
    multiplies = rows * depth * columns
    return Prediction(
        max(read * _RUNTIME_NS_PER_BYTE, multiplies * _RUNTIME_NS),
        max(read * _OURS_NS_PER_BYTE, multiplies * _OURS_NS),
    )

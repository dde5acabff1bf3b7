"""Regions of int8 matrix products on CPUs: the product, and what follows it up to its rounding."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ortkit.fusion.gemm.int8_chain import Chain, End
from ortkit.fusion.gemm.int8_products import IntegerProduct, find_product
from ortkit.fusion.regions.cost_model import Prediction, nominal
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search, refused
from ortkit.rewrite.scope import Scope

#: Of a multiply-add on one thread (EPYC with Zen 4, VNNI, 2026-11-27): ONNX Runtime's product at
#: 420 GOP/s, ours at 440.
_RUNTIME_NS, _OURS_NS = 2 / 420, 2 / 440
#: Of a node of ONNX Runtime, and of an element that it reads and writes.
_NODE_NS, _ELEMENT_NS = 1500.0, 0.1
#: With fewer rows and this many weights ONNX Runtime's product takes 0.73 to 0.95 of the time of
#: ours. Fewer weights cost no more than their nodes, and more wait for memory (2026-11-28).
_FEW_ROWS, _WEIGHTS = 16, range(1 << 19, 1 << 23)
#: Shorter chains that are tried where a kernel does not take the longest.
_TRIED = 4


def family(search: Search) -> Iterator[Candidate]:
    """Yield a candidate for each int8 matrix product of one graph.

    Only the end of such a region is read by others, and it reads nothing that depends on it.
    """
    for node in search.nodes():
        product = find_product(search.scope, node)
        if product is None or not search.taken.isdisjoint(product.nodes):
            continue
        yield _candidate(search, product)


def _candidate(search: Search, product: IntegerProduct) -> Candidate:
    """Return the region with the longest chain that has a kernel."""
    chain, last = Chain(search, product), None
    if _has_few_rows(search.scope, product):
        region, _ = chain.region(chain.ends[-1])
        return refused(
            region, f"with fewer than {_FEW_ROWS} rows ONNX Runtime's product is faster"
        )
    for end in chain.ends[::-1][:_TRIED]:
        region, signature = chain.region(end)
        verdict = search.accepts(signature)
        if verdict is None:
            return search.take(region, signature, _predict(search.scope, product, end))
        last = last or refused(region, verdict.reason)
    assert last is not None
    return last


def _has_few_rows(scope: Scope, product: IntegerProduct) -> bool:
    """Say whether a product has few rows, as far as its sizes are known."""
    sizes = (scope.shapes.shape(product.x) or ())[:-1]
    rows = [size for size in sizes if isinstance(size, int)]
    is_known = len(rows) == len(sizes) > 0
    return is_known and prod(rows) < _FEW_ROWS and prod(product.matrix.sizes) in _WEIGHTS


def _predict(scope: Scope, product: IntegerProduct, end: End) -> Prediction:
    """Return what the region takes; sizes that are not known are nominal."""
    rows = 1.0
    for size in (scope.shapes.shape(product.x) or ())[:-1]:
        rows *= nominal(size)
    depth, columns = product.matrix.sizes
    multiplies, elements = rows * depth * columns, rows * columns
    others = len(end.nodes) - len(product.nodes)
    before = multiplies * _RUNTIME_NS + others * (_NODE_NS + elements * _ELEMENT_NS)
    return Prediction(before, multiplies * _OURS_NS + others * elements * _ELEMENT_NS / 4)

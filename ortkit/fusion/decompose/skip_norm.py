"""Decompose skip norms after matmuls on CUDA into sum and norm before regions are formed.

A kernel for a product can add the residual where it has the result, and one for the next product
can do the norm where it reads its rows. ONNX Runtime's operator for both stands between them. A
pair of which no part went into a region becomes that operator again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.fusion.decompose.run import Decomposition, Wanted
from ortkit.fusion.gemm.cuda import is_product, takes_sum
from ortkit.fusion.regions.access import is_read_once
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Which input is added in addition to the first two; those between are the norm's.
_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
_NORM = {
    "SkipLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
}
_SUM = 3
#: The default domain has LayerNormalization since.
_SINCE = 17


@dataclass(frozen=True)
class DecomposeSkipNorm(Decomposition):
    """Write a skip norm after a matmul as sums and a norm.

    Before:
        y, , , s = SkipLayerNormalization(x, skip, w, b, bias)
    After:
        s = Add(Add(x, bias), skip);  y = LayerNormalization(s, w, b)

    Skips:
        * Means and deviations that are read.
    """

    name: ClassVar[str] = "decompose-skip-norm"
    ops: ClassVar[Sequence[str]] = tuple(f"com.microsoft::{kind}" for kind in _NORM)

    wanted: Wanted = takes_sum
    """True for a matmul whose kernel may absorb the sum after it."""

    def rewrite(self, site: Site) -> None:
        node = site.node
        if site.opset < _SINCE or any(
            output.uses() or output.is_graph_output() for output in node.outputs[1:_SUM]
        ):
            return
        products = (_is_of_product(site.scope, value, self.wanted) for value in node.inputs[:2])
        if any(products) and site.claim("skip-norm"):
            _split(site)


def _is_of_product(scope: Scope, value: ir.Value | None, wanted: Wanted) -> bool:
    """Say whether a value is made by a product that may take the sum, which alone reads it."""
    maker = None if value is None or not is_read_once(value) else value.producer()
    return maker is not None and is_product(scope, maker) and wanted(scope, maker)


def _split(site: Site) -> None:
    scope, skip, y = site.scope, site.node, site.output
    inputs = [*skip.inputs, *[None] * 5][:5]
    index = _BIAS[skip.op_type]
    value, other = _product_first(scope, inputs[0], inputs[1])
    for term in (inputs[index], other):
        if term is not None:
            value = site.op("Add", [value, term], name=f"{y.name}/sum")
    factors = inputs[2:index]
    while factors and factors[-1] is None:
        factors.pop()
    attributes = {"axis": -1, "epsilon": site.float("epsilon", 1e-12)}
    normed = site.op(_NORM[skip.op_type], [value, *factors], attributes, name=f"{y.name}/norm")
    total = skip.outputs[_SUM] if len(skip.outputs) > _SUM else None
    site.replace(normed)
    if total is not None:
        site.replace(value, total)


def _product_first(
    scope: Scope, one: ir.Value | None, other: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Return the two terms of a sum, that which a product makes first."""
    assert one is not None
    assert other is not None
    maker = one.producer() if is_read_once(one) else None
    return (one, other) if maker is not None and is_product(scope, maker) else (other, one)

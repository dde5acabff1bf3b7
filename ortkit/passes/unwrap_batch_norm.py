"""unwrap-batch-norm: a BatchNormalization beyond Reshapes scales and shifts the product itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.affine import Channels, read_affine
from ortkit.analysis.axes import track
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: No exporter puts more between a product and its norm.
LONGEST = 4
NUMPY = {ir.DataType.FLOAT: np.float32, ir.DataType.DOUBLE: np.float64,
         ir.DataType.FLOAT16: np.float16}  # fmt: skip


@dataclass(frozen=True)
class UnwrapBatchNorm(NodePass):
    """Normalize a product where it is made, for its weights to take that.

    Before:
        t = MatMul(x, W)                                         # [b, s, n]
        y = BatchNormalization(Reshape(t, [-1, n]), ...)
    After:
        u = Add(Mul(MatMul(x, W), scale), shift)
        y = Reshape(u, [-1, n])

    Reshapes and Transposes between the two may do anything to the other axes. What is left is for
    fold-affine-into-matmul; a BatchNormalization of a product takes all axes after its second for
    pixels, and knows the columns only after a Reshape or a Transpose.

    Skips:
        * Products of two values that vary or of shared weights, or with a bias that is no row.
        * Steps in between that others read.
        * Channels that are not the columns of the product.
        * Training mode, and parameters that are not constant.

    Source:
        ONNX BatchNormalization-9 ... 15: (x - mean) / sqrt(var + epsilon) * scale + B.
    """

    name: ClassVar[str] = "unwrap-batch-norm"
    ops: ClassVar[Sequence[str]] = ("BatchNormalization",)

    def rewrite(self, site: Site) -> None:
        chain = _chain(site)
        product = chain[0].inputs[0] if chain else None
        if product is None or not _has_weights(site, product):
            return
        layout = track(site.scope.shapes, chain)
        shape = site.shape(site.input(0))
        if layout is None or shape is None or len(shape) < 2:
            site.miss("how its axes come from those of the product is not known")
            return
        size = shape[1]
        if layout.source[-1] != layout.result[1] or not isinstance(size, int) or size == 1:
            site.miss("its channels are not the columns of the product")
            return
        step = read_affine(site, site.node, 0, Channels(1, len(shape), size))
        dtype = site.dtype(site.output)
        if step is None or dtype not in NUMPY or _is_used(site):
            site.miss("it trains, or its parameters are not constant")
            return
        like = np.zeros(0, NUMPY[dtype])
        scale, shift = rounded(step.scale, like), rounded(step.shift, like)
        last = site.input(0)
        if scale is None or shift is None or last is None:
            site.miss("its scale or shift would not fit its type")
            return
        if site.can_replace(last) and site.claim("columns"):
            inner = Site(site.scope, chain[0], self.name)
            name = f"{site.output.name}/columns"
            made = inner.op("Mul", [product, site.constant(scale)], name=name)
            inner.set_input(0, inner.op("Add", [made, site.constant(shift)], name=name))
            site.replace(last)


def _chain(site: Site) -> list[ir.Node]:
    """Return the layout ops before this node that nothing else reads, first one first."""
    chain: list[ir.Node] = []
    value = site.input(0)
    while value is not None and site.only_use(value) and len(chain) < LONGEST:
        node = site.producer(value, *RESHAPES, "Transpose")
        if node is None or node.graph is not site.node.graph:
            break
        chain.insert(0, node)
        value = node.inputs[0]
    return chain


def _has_weights(site: Site, value: ir.Value) -> bool:
    """Say whether `value`, read here only, is a product that will take a scale and a shift."""
    node = site.producer(value, "MatMul", "Gemm", "Add")
    if node is None or not site.only_use(value) or node.graph is not site.node.graph:
        return False
    if node.op_type == "Add":
        pairs = (node.inputs, (node.inputs[1], node.inputs[0]))
        return any(
            other is not None
            and site.producer(other, "MatMul") is not None
            and _is_row(site, bias)
            and _has_weights(site, other)
            for other, bias in pairs
        )
    weight = node.inputs[1]
    if weight is None or not site.scope.is_constant(weight) or not site.only_use(weight):
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return site.rank(weight) == 2 and (bias is None or _is_row(site, bias))


def _is_row(site: Site, value: ir.Value | None) -> bool:
    shape = site.shape(value) if site.scope.is_constant(value) else None
    return shape is not None and all(size == 1 for size in shape[:-1])


def _is_used(site: Site) -> bool:
    return any(value.uses() or value.is_graph_output() for value in site.node.outputs[1:])

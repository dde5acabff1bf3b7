"""fuse-matmul-add: Gemm for a MatMul of two matrices and an Add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class FuseMatmulAdd(NodePass):
    """Let a Gemm add the bias where both operands of the product are matrices.

    Before:
        y = Add(MatMul(x, W), b)                    # x: [m, k], W: [k, n], b: [n]
    After:
        y = Gemm(x, W, b)

    One node less and not faster: ONNX Runtime 1.31.1 does the same at load, and generated
    kernels can take an Add of their own.

    Skips:
        * Ranks other than 2, and a bias that the product would be broadcast to.
        * A product that others read; dequantized operands, whose group stays whole.

    Source:
        ONNX Gemm-7 ... 13: C broadcasts to [m, n] in one direction.
    """

    name: ClassVar[str] = "fuse-matmul-add"
    ops: ClassVar[Sequence[str]] = ("MatMul",)

    def rewrite(self, site: Site) -> None:
        end = _adder(site)
        if end is None or any(site.rank(value) != 2 for value in site.node.inputs):
            return
        if site.dtype(site.output) not in FLOATS or site.opset < 7:
            return
        if any(site.producer(value, "DequantizeLinear") for value in site.node.inputs):
            site.miss("its operands are dequantized, and the group stays whole")
            return
        bias = end.inputs[1] if end.inputs[0] is site.output else end.inputs[0]
        product, shape = site.shape(site.output), site.shape(bias)
        if product is None or shape is None or not _broadcasts(shape, product):
            site.miss("its bias may be larger than the product")
            return
        last = Site(site.scope, end, self.name)
        if last.can_replace(site.output) and site.claim("bias"):
            last.replace(last.op("Gemm", [*site.node.inputs, bias]))


def _adder(site: Site) -> ir.Node | None:
    """Return the Add that alone reads the product, and adds something else to it."""
    if not site.only_use(site.output):
        if any(node.op_type == "Add" for node in site.output.consumers()):
            site.miss("others read the product")
        return None
    node = next(iter(site.output.consumers()))
    same = node.graph is site.node.graph
    return node if same and node.domain == "" and node.op_type == "Add" else None


def _broadcasts(shape: Sequence[Size], product: Sequence[Size]) -> bool:
    """Say whether a value of this shape can be added to the product without widening it."""
    if len(shape) > len(product):
        return False
    ends = product[len(product) - len(shape) :]
    return all(size in (1, wide) for size, wide in zip(shape, ends, strict=True))

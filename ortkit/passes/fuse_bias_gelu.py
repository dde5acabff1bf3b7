"""fuse-bias-gelu: a bias and the GELU after it become one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: On CPU this is as fast as the two nodes, and generated kernels start from these.
LEVEL = 3


@dataclass(frozen=True)
class FuseBiasGelu(NodePass):
    """Let GELU add the bias of the linear layer before it.

    Before:
        y = Gelu(Add(x, b))            # b has one axis: the columns
    After:
        y = com.microsoft::BiasGelu(x, b), FastGelu(x, b) where approximate = tanh

    Skips:
        * Below level 3: on CPU the two nodes are as fast (ONNX Runtime 1.31.1).
        * Sums that others read; biases of other shapes; double, which no CPU kernel takes.

    Source:
        com.microsoft BiasGelu-1 and FastGelu-1; ONNX Gelu-20.
    """

    name: ClassVar[str] = "fuse-bias-gelu"
    ops: ClassVar[Sequence[str]] = ("Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu")

    def rewrite(self, site: Site) -> None:
        add = site.producer(site.input(0), "Add")
        if add is None or len(site.node.inputs) != 1 or add.graph is not site.node.graph:
            return
        if site.scope.options.level < LEVEL:
            site.miss("a sum and its GELU are as fast apart, and what kernels are made from")
            return
        if not site.only_use(add.outputs[0]):
            site.miss("others read the sum")
            return
        if site.dtype(site.output) not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            site.miss("BiasGelu takes float32 and float16")
            return
        operands = _operands(site, add)
        if operands is None:
            site.miss("what is added is not one number per column")
            return
        is_tanh = site.node.op_type == "FastGelu" or site.string("approximate", "") == "tanh"
        if site.claim("tanh" if is_tanh else "erf"):
            site.scope.import_domain("com.microsoft", 1)
            op_type = "FastGelu" if is_tanh else "BiasGelu"
            site.replace(site.op(op_type, operands, domain="com.microsoft"))


def _operands(site: Site, add: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return what is computed and the bias, [columns]."""
    left, right = add.inputs
    for x, bias in ((left, right), (right, left)):
        row, full = site.shape(bias), site.shape(x)
        if x is None or bias is None or row is None or not full:
            continue
        if len(row) == 1 and len(full) >= 2 and full[-1] == row[0]:
            return x, bias
    return None

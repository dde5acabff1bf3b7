"""fold-sizes: integer tensors whose elements follow from shapes become constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.reshape import static
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

NUMPY = {
    ir.DataType.INT64: np.int64,
    ir.DataType.INT32: np.int32,
    ir.DataType.BOOL: np.bool_,
}


@dataclass(frozen=True)
class FoldSizes(NodePass):
    """Replace size arithmetic with a known result by that result.

    Before:
        n = Gather(Shape(x), 2);  m = Mul(n, 4)        # x: [batch, seq, 16]
    After:
        m = 64

    Skips:
        * Results that a graph returns: they must be computed there.

    Source:
        ONNX Shape-1 ... 25 and the ops on its result; see `ortkit.graph.shapes.infer`.
    """

    name: ClassVar[str] = "fold-sizes"
    ops: ClassVar[Sequence[str]] = ("*",)

    def rewrite(self, site: Site) -> None:
        if len(site.node.outputs) != 1 or site.node.op_type == "Constant":
            return
        value = site.output
        contents = site.contents(value)
        if contents is None or value.is_graph_output() or not value.uses():
            return
        dtype, shape, numbers = site.dtype(value), static(site.shape(value)), static(contents)
        if dtype not in NUMPY or shape is None or numbers is None:
            return
        if site.claim("known"):
            data: np.ndarray = np.array(numbers, NUMPY[dtype]).reshape(shape)
            site.replace(site.constant(data, f"{value.name}/value"))

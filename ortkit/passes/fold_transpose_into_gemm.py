"""fold-transpose-into-gemm: Gemm reads a transposed matrix by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class FoldTransposeIntoGemm(NodePass):
    """Set transA or transB instead of transposing a matrix first.

    Before:
        t = Transpose(x);  y = Gemm(t, W, b)        # x: [k, m]
    After:
        y = Gemm<transA = 1>(x, W, b)

    A MatMul of two matrices becomes a Gemm for that. A transposed constant is left to
    fold-constants.

    Skips:
        * A Transpose that others read: it would stay, and the product would not be faster.
        * More than two axes: ONNX Runtime makes its own FusedMatMul of these at load.
        * Transposes of dequantized values, whose group stays whole.

    Source:
        ONNX Gemm-7 ... 13, Transpose-1 ... 25.
    """

    name: ClassVar[str] = "fold-transpose-into-gemm"
    ops: ClassVar[Sequence[str]] = ("Gemm", "MatMul")

    def rewrite(self, site: Site) -> None:
        found = [index for index in (0, 1) if self._folds(site, index)]
        if not found or not self._can_be_gemm(site) or not site.claim("transpose"):
            return
        sources = list(site.node.inputs)
        flips = {"transA": site.int("transA", 0), "transB": site.int("transB", 0)}
        for index in found:
            transpose = site.producer(sources[index], "Transpose")
            assert transpose is not None, "found above"
            sources[index] = transpose.inputs[0]
            name = ("transA", "transB")[index]
            flips[name] = 1 - flips[name]
        if site.node.op_type == "MatMul":
            site.replace(site.op("Gemm", sources, flips))
            return
        for name, value in flips.items():
            site.set_attribute(name, value)
        for index in found:
            site.set_input(index, sources[index])

    def _folds(self, site: Site, index: int) -> bool:
        """Say whether a Transpose of a matrix makes input `index`, and may go."""
        value = site.input(index)
        transpose = site.producer(value, "Transpose")
        if value is None or transpose is None or site.rank(value) != 2:
            return False
        perm = Site(site.scope, transpose, self.name).perm()
        if perm != (1, 0) or site.scope.is_constant(transpose.inputs[0]):
            return False
        if site.producer(transpose.inputs[0], "DequantizeLinear") is not None:
            site.miss("the transposed value is dequantized, and the group stays whole")
            return False
        if not site.only_use(value):
            site.miss("others read the transposed matrix")
            return False
        return True

    def _can_be_gemm(self, site: Site) -> bool:
        if site.node.op_type == "Gemm":
            return True
        ranks = [site.rank(value) for value in site.node.inputs]
        return ranks == [2, 2] and site.dtype(site.output) in FLOATS and site.opset >= 11

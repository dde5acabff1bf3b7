"""The product that a region of bytes begins with, written as nodes of its body."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.fusion.int8.body import BodyBuilder
from ortkit.fusion.int8.grids import Array, Grid, quotient
from ortkit.fusion.int8.products import IntegerProduct
from ortkit.kernels.layouts.int8_panels import NARROW
from ortkit.rewrite.scope import Scope
from ortkit.targets.cpu import has_vnni

#: The opset from which on Clip takes bytes.
_CLIPS_BYTES = 12


@dataclass(frozen=True)
class WrittenProduct:
    """A product in a body.

    Args:
        name: Of its result.
        is_rounded: Whether what rounds the result is in its scale.
    """

    name: str
    is_rounded: bool


@dataclass(frozen=True)
class ProductWriter:
    """Writes a product.

    Args:
        scope: Of the graph.
        product: What is written.
        body: Where to.
    """

    scope: Scope
    product: IntegerProduct
    body: BodyBuilder

    def write(self, rounding: Grid | None) -> WrittenProduct:
        """Write the product, scaled and rounded.

        Args:
            rounding: Of what rounds the result; None if nothing does, or ONNX Runtime rounds
                apart from the product.
        """
        integer_product, w = self.product, self.body.writer
        panels = self.body.constants(
            integer_product.matrix,
            f"{integer_product.matrix.value.name}/panels",
            integer_product.matrix.tensor(),
        )
        x, packed = self.body.input("x", integer_product.source), self.body.input("w", panels)
        if integer_product.given is not None:
            x = self.body.quantized(x, integer_product.given[1])
        cast = w.op("Cast", self._sums(x, self._weights(packed)), to=int(ir.DataType.FLOAT))
        scale = integer_product.scale
        if rounding is not None and not isinstance(scale, ir.Value):
            scale = quotient(scale, rounding.scale)
            if not np.isfinite(scale).all():
                scale, rounding = integer_product.scale, None
        name = self._operand("s", scale)
        if integer_product.factor is not None:
            name = w.op("Mul", self.body.input("f", integer_product.factor), name)
        scaled = w.op("Mul", cast, name)
        if integer_product.bias is not None:
            name = self._operand("b", integer_product.bias)
            scaled = w.op("Add", scaled, name)
        grid = rounding if integer_product.grid is None else integer_product.grid
        if grid is None:
            return WrittenProduct(scaled, is_rounded=False)
        made = self.body.quantized(scaled, Grid(np.float32(1.0), grid.zero))
        return WrittenProduct(
            made, is_rounded=rounding is not None and integer_product.grid is None
        )

    def _operand(self, name: str, given: ir.Value | Array) -> str:
        """Return an input: a value of the graph, or constant numbers of each column."""
        if isinstance(given, ir.Value):
            return self.body.input(name, given)
        return self.body.row(name, given)

    def _weights(self, packed: str) -> str:
        """Write what the product reads of panels; kernels without VNNI are told of 7 bits."""
        w, matrix = self.body.writer, self.product.matrix
        unpacked = w.unpacked(packed, matrix.layout)
        if not self._tells_of_narrow() or not matrix.is_narrow():
            return unpacked
        limits = [w.constant(np.int8(number)) for number in (-NARROW, NARROW)]
        return w.op("Clip", unpacked, *limits)

    def _tells_of_narrow(self) -> bool:
        target = self.scope.target
        if not target.traits.is_host or self.scope.opset() < _CLIPS_BYTES:
            return False
        return self.product.matrix.can_be_narrow and not has_vnni(target.resolved().level)

    def _sums(self, x: str, weights: str) -> str:
        """Write the exact sums; what zero points of x take off is known but for these."""
        w, one = self.body.writer, self.product
        matrix, given = one.matrix, one.zero
        if not isinstance(given, ir.Value) and not matrix.has_zeros_around:
            sums = matrix.sums(w, x, weights, "")
            if not np.any(given) and one.added is None:
                return sums
            return w.op("Add", sums, self.body.row("c", matrix.offsets(given, one.added)))
        assert not isinstance(given, np.ndarray)
        if isinstance(given, int):
            # Kernels for GPUs are others where what is outside of an image is 0 itself.
            is_plain = not given and not self.scope.traits.is_host
            zero = "" if is_plain else self.body.number(np.uint8(given))
            sums = matrix.sums(w, x, weights, zero)
        elif matrix.has_zeros_around:
            sums = matrix.sums(w, x, weights, self.body.input("z", given))
        else:
            number = w.op("Cast", self.body.input("z", given), to=int(ir.DataType.INT32))
            key, name = (matrix, "column sums"), f"{matrix.value.name}/column_sums"
            columns = self.body.constants(key, name, matrix.column_sums())
            off = w.op("Mul", number, self.body.input("k", columns))
            sums = w.op("Sub", matrix.sums(w, x, weights, ""), off)
        return sums if one.added is None else w.op("Add", sums, self.body.row("c", one.added))

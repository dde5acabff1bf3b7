"""The ways of computing a product in a lower precision, each as nodes that ONNX Runtime has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.precision.building import MICROSOFT, Builder
from ortkit.precision.products import Product
from ortkit.precision.weight_quantization import Blocks, by_blocks, by_column, shift

_U8 = ir.DataType.UINT8
_FLOAT = ir.DataType.FLOAT


class Form(Protocol):
    """One product in a lower precision."""

    @property
    def product(self) -> Product:
        """What it computes."""
        ...

    @property
    def name(self) -> str:
        """What reports and ids call it."""
        ...

    def emit(self, build: Builder) -> ir.Value:
        """Make its nodes, and return what stands for the product's value."""
        ...


@dataclass(frozen=True, eq=False)
class DynamicInt8:
    """Activations to 8 bits as they come, weights by column: DynamicQuantizeMatMul."""

    product: Product
    bits: int = 8
    """7 where the processor adds pairs of products in 16 bits, which 8 bits overflow."""
    means: np.ndarray | None = None
    """Of what is multiplied, by column; see `bias_correction.py`."""
    name: str = "int8"

    @cached_property
    def weight(self) -> tuple[np.ndarray, np.ndarray]:
        """The weight as int8 [k, n], and its scales [n]."""
        return by_column(self.product.array(), self.bits)

    def emit(self, build: Builder) -> ir.Value:
        """Make the one node that quantizes, multiplies and adds the bias."""
        weight, scales = self.constants(build)
        inputs = [self.product.x, weight, scales, None, self.bias(build)]
        while inputs[-1] is None:
            inputs.pop()
        return build.one(
            "DynamicQuantizeMatMul", inputs, f"{self.product.key}/int8", domain=MICROSOFT
        )

    def emit_shared(
        self, build: Builder, quantized: tuple[ir.Value, ir.Value, ir.Value]
    ) -> ir.Value:
        """Make the node that multiplies what was quantized for several products at once.

        Args:
            build: Where to make it.
            quantized: What DynamicQuantizeLinear gives: numbers, scale, zero point.
        """
        numbers, scale, zero = quantized
        weight, scales = self.constants(build)
        inputs = [numbers, weight, scale, scales, zero, None, self.bias(build)]
        while inputs[-1] is None:
            inputs.pop()
        return build.one(
            "MatMulIntegerToFloat", inputs, f"{self.product.key}/int8", domain=MICROSOFT
        )

    def constants(self, build: Builder) -> tuple[ir.Value, ir.Value]:
        """Add weight and scales."""
        numbers, scales = self.weight
        name = self.product.weight.name
        return build.constant(numbers, f"{name}/int8"), build.constant(scales, f"{name}/scales")

    def bias(self, build: Builder) -> ir.Value | None:
        """Return the bias as [n], which is what the operators take."""
        numbers, scales = self.weight
        array = _corrected(self.product, lambda: numbers * scales, self.means)
        if array is None or self.product.bias is None:
            return None
        if self.means is None and self.product.bias.shape == (array.size,):
            return self.product.bias
        return build.constant(array, f"{self.product.bias.name}/row")


def quantized_once(build: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Make the node that quantizes `x` for several products."""
    made = build.node(
        "DynamicQuantizeLinear", [x], f"{x.name}/quantized", dtypes=(_U8, _FLOAT, _U8)
    )
    return made[0], made[1], made[2]


@dataclass(frozen=True, eq=False)
class BlockInt4:
    """Weights in 4 bits, a scale for each block of rows: MatMulNBits."""

    product: Product
    block: int = 32
    bits: int = 4
    means: np.ndarray | None = None
    """Of what is multiplied, by column; see `bias_correction.py`."""

    @property
    def name(self) -> str:
        """The form with its block size, which is a choice of its own."""
        return f"int{self.bits}-block{self.block}"

    @cached_property
    def weight(self) -> Blocks:
        """The weight in blocks."""
        return by_blocks(self.product.array(), self.block, self.bits)

    def emit(self, build: Builder) -> ir.Value:
        """Make the one node; activations are rounded to 8 bits by block inside of it."""
        rows, columns = self.product.array().shape
        name = self.product.weight.name
        bias = _corrected(self.product, lambda: self.weight.widened(rows), self.means)
        inputs: list[ir.Value | None] = [
            self.product.x,
            build.constant(self.weight.packed, f"{name}/{self.name}"),
            build.constant(self.weight.scales, f"{name}/{self.name}/scales"),
        ]
        if bias is not None:
            inputs += [None, None, build.constant(bias, f"{name}/bias")]
        attributes = {
            "K": rows, "N": columns, "bits": self.bits, "block_size": self.block,
            "accuracy_level": 4,
        }  # fmt: skip
        return build.one(
            "MatMulNBits", inputs, f"{self.product.key}/{self.name}", attributes, domain=MICROSOFT
        )


def _corrected(
    product: Product, weight: Callable[[], np.ndarray], means: np.ndarray | None
) -> np.ndarray | None:
    """Return a product's bias without what its rounded weight shifts; none stays none."""
    bias = product.bias_array()
    if bias is None or means is None:
        return bias
    return np.asarray(bias - shift(product.array(), weight(), means), np.float32)


def activated(build: Builder, product: Product, value: ir.Value) -> ir.Value:
    """Make a convolution's activation again, if it has one."""
    if product.activation is None:
        return value
    inputs = [value, *product.activation.inputs[1:]]
    return build.again(product.activation, inputs, f"{product.key}/activated")


@dataclass(frozen=True, eq=False)
class RoundedBf16:
    """What a bfloat16 kernel computes, in float32: both factors rounded, summed in float32."""

    product: Product
    name: str = "bf16"

    def emit(self, build: Builder) -> ir.Value:
        """Make casts there and back and the node itself, with a weight that is rounded."""
        product, node = self.product, self.product.node
        down = build.one(
            "Cast", [product.x], f"{product.key}/rounded", {"to": int(ir.DataType.BFLOAT16)},
            dtype=ir.DataType.BFLOAT16,
        )  # fmt: skip
        up = build.one("Cast", [down], f"{product.key}/widened", {"to": int(_FLOAT)})
        rounded = product.array().astype(ml_dtypes.bfloat16).astype(np.float32)
        weight = build.constant(rounded, f"{product.weight.name}/rounded")
        bias = product.bias_array()
        given = None if bias is None else build.constant(bias, f"{product.key}/bias")
        if product.kind == "convolution":
            inputs = [up, weight] if given is None else [up, weight, given]
            result = build.again(node, inputs, f"{product.key}/bf16")
            return activated(build, product, result)
        result = build.one("MatMul", [up, weight], f"{product.key}/bf16")
        return result if given is None else build.one("Add", [result, given], f"{product.key}/sum")

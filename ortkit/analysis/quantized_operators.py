"""Operators on quantized numbers (QOperator format): where their numbers and zero points are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.operators.contrib import MICROSOFT


@dataclass(frozen=True)
class QuantizedOperands:
    """The quantized numbers that a node reads and makes.

    Args:
        numbers: By the index of an input of quantized numbers that of its zero point.
        zero: The input that is the result's zero point; None if the result is none of these.
        weight: The input that may have a type of its own where it is constant.
    """

    numbers: Mapping[int, int]
    zero: int | None
    weight: int | None = None


_ONE = QuantizedOperands({0: 2}, 4)
_TWO = QuantizedOperands({0: 2, 3: 5}, 7)
_OPERANDS: Mapping[tuple[str, str], QuantizedOperands] = {
    ("", "QLinearConv"): QuantizedOperands({0: 2, 3: 5}, 7, weight=3),
    ("", "QLinearMatMul"): QuantizedOperands({0: 2, 3: 5}, 7, weight=3),
    (MICROSOFT, "QGemm"): QuantizedOperands({0: 2, 3: 5}, 8, weight=3),
    (MICROSOFT, "QLinearAdd"): _TWO,
    (MICROSOFT, "QLinearMul"): _TWO,
    (MICROSOFT, "QLinearAveragePool"): _ONE,
    (MICROSOFT, "QLinearGlobalAveragePool"): _ONE,
    (MICROSOFT, "QLinearLeakyRelu"): _ONE,
    (MICROSOFT, "QLinearSigmoid"): _ONE,
    (MICROSOFT, "QLinearSoftmax"): _ONE,
    (MICROSOFT, "QLinearWhere"): QuantizedOperands({1: 3, 4: 6}, 8),
}  # fmt: skip
#: Of these a third input is the first of three: numbers, scale and zero point of an operand.
_CONCAT = (MICROSOFT, "QLinearConcat")
#: Products, whose kernels differ most by the type of what they read.
_PRODUCTS = frozenset({("", "QLinearConv"), ("", "QLinearMatMul"), (MICROSOFT, "QGemm")})


def operands_of(node: ir.Node) -> QuantizedOperands | None:
    """Return which inputs of a node are quantized numbers; None for other operators.

    QuantizeLinear and DequantizeLinear are among them.
    """
    if is_op(node, "QuantizeLinear"):
        return QuantizedOperands({}, 2)
    if is_op(node, "DequantizeLinear"):
        return QuantizedOperands({0: 2}, None)
    key = (node.domain, node.op_type)
    if key == _CONCAT:
        return QuantizedOperands({at: at + 2 for at in range(2, len(node.inputs), 3)}, 1)
    found = _OPERANDS.get(key)
    if found is not None and key == (MICROSOFT, "QGemm") and not _has_zero(node):
        return QuantizedOperands(found.numbers, None, found.weight)
    return found


def is_quantized_product(node: ir.Node) -> bool:
    """Say whether a node is a product of quantized numbers."""
    return (node.domain, node.op_type) in _PRODUCTS


def _has_zero(gemm: ir.Node) -> bool:
    """Say whether a QGemm rounds its result, which is float32 else."""
    return len(gemm.inputs) > 7 and gemm.inputs[7] is not None

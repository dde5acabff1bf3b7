"""Fp8 matmuls as models have them: weights, rows, and what rounds rows."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.rewrite.scope import Scope

FP8 = ir.DataType.FLOAT8E4M3FN
#: Other types of operands and results.
FLOATS = {
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.FLOAT: np.dtype(np.float32),
}
#: The largest fp8 number.
LARGEST = 448.0


@dataclass(frozen=True, eq=False)
class Matrix:
    """A constant fp8 weight.

    Args:
        source: The value in the model that holds it, by which it is known again.
        numbers: [columns, depth].
        scale: A factor for each column, or one.
        is_direct: Whether the product reads it as [columns, depth].
        is_stored_transposed: Whether `source` has those numbers.
    """

    source: ir.Value
    numbers: np.ndarray
    scale: np.ndarray
    is_direct: bool
    is_stored_transposed: bool


@dataclass(frozen=True)
class Rows:
    """The first operand: in half precision or in fp8.

    Args:
        value: The rows.
        scale: A number, or the value with a factor for each row; None in half precision.
        makers: The nodes from `value` to what the product reads.
    """

    value: ir.Value
    scale: float | ir.Value | None
    makers: tuple[ir.Node, ...] = ()


def is_fp8_product(scope: Scope, node: ir.Node) -> bool:
    """Say whether a node is a matmul with a constant fp8 weight."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or matrix_of(scope, node) is None:
        return False
    rows, result = node.inputs[0], node.outputs[0]
    if rows is None or scope.is_constant(rows) or scope.shapes.dtype(result) not in FLOATS:
        return False
    shape, own = scope.shapes.shape(rows), scope.shapes.shape(result)
    if shape is None or own is None or len(shape) < 2 or len(own) != len(shape):
        return False
    return isinstance(shape[-1], int) and isinstance(own[-1], int)


def matrix_of(scope: Scope, product: ir.Node) -> Matrix | None:
    """Return the fp8 weight of a matmul; None if it has none."""
    value = product.inputs[1]
    transposed = bool(product.attributes.get_int("transB", 0))
    node = None if value is None else value.producer()
    is_direct = transposed
    if node is not None and node.op_type == "Transpose" and not node.domain:
        perm = node.attributes.get("perm")
        if perm is not None and tuple(perm.as_ints()) != (1, 0):
            return None
        transposed = not transposed
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is None or not is_op(node, "DequantizeLinear") or value is None:
        return None
    found = _eights(scope, node)
    if found is None:
        return None
    source, numbers, scale, axis = found
    if numbers.ndim != 2 or (scale.size > 1 and axis != (0 if transposed else 1)):
        return None
    is_stored_transposed = transposed and scope.shapes.dtype(source) == FP8
    return Matrix(
        source, numbers if transposed else numbers.T, scale, is_direct, is_stored_transposed
    )


def _eights(scope: Scope, node: ir.Node) -> tuple[ir.Value, np.ndarray, np.ndarray, int] | None:
    """Return what DequantizeLinear reads: its source, numbers, factors, and their axis."""
    scale = scope.array(node.inputs[1]) if node.inputs[1] is not None else None
    is_blocked = node.attributes.get_int("block_size", 0) != 0
    if scale is None or is_blocked or not is_centred(scope, node):
        return None
    source = node.inputs[0]
    assert source is not None
    rounding = source.producer()
    axis = node.attributes.get_int("axis", 1) % 2
    if rounding is not None and is_op(rounding, "QuantizeLinear"):
        own = scope.array(rounding.inputs[1]) if rounding.inputs[1] is not None else None
        wide = rounding.inputs[0]
        array = None if wide is None or not scope.is_constant(wide) else scope.array(wide)
        same = own is not None and np.array_equal(own, scale) and is_centred(scope, rounding)
        if array is None or array.ndim != 2 or not same or scope.shapes.dtype(source) != FP8:
            return None
        assert wide is not None
        factors = scale.reshape(-1).astype(np.float32)
        shape = [1, 1]
        shape[axis] = -1
        return wide, rounded_eights(array / factors.reshape(shape)), factors, axis
    if not scope.is_constant(source) or scope.shapes.dtype(source) != FP8:
        return None
    array = scope.array(source)
    return None if array is None else (source, array, scale.reshape(-1).astype(np.float32), axis)


def rounded_eights(array: np.ndarray) -> np.ndarray:
    """Return numbers in fp8, clipped to its range."""
    inside = np.clip(array.astype(np.float32), -LARGEST, LARGEST)
    return inside.astype(ml_dtypes.float8_e4m3fn)


def rows_of(scope: Scope, product: ir.Node) -> Rows:
    """Return what a product multiplies."""
    value = product.inputs[0]
    assert value is not None
    node = value.producer()
    if node is not None and is_op(node, "DequantizeLinear"):
        source, scale = node.inputs[0], node.inputs[1]
        array = None if scale is None else scope.array(scale)
        is_one = array is not None and array.size == 1 and is_centred(scope, node)
        if is_one and source is not None and scope.shapes.dtype(source) == FP8:
            assert array is not None
            return Rows(source, float(array.reshape(())), (node,))
        return Rows(value, None)
    makers = [] if node is None else [node]
    if (
        node is not None
        and node.op_type == "Cast"
        and not node.domain
        and node.inputs[0] is not None
    ):
        node = node.inputs[0].producer()
        makers += [] if node is None else [node]
    if node is None or node.op_type != "Mul" or node.domain:
        return Rows(value, None)
    wide, factors = node.inputs
    cast = None if wide is None else wide.producer()
    if cast is None or factors is None or cast.op_type != "Cast" or cast.domain:
        return Rows(value, None)
    source = cast.inputs[0]
    shapes = scope.shapes
    if source is None or shapes.dtype(source) != FP8 or shapes.dtype(factors) != ir.DataType.FLOAT:
        return Rows(value, None)
    shape, own = shapes.shape(source), shapes.shape(factors)
    if shape is None or own != (*shape[:-1], 1):
        return Rows(value, None)
    return Rows(source, factors, (*makers, cast))


def rounding_nodes(scope: Scope, value: ir.Value) -> tuple[ir.Node, ...]:
    """Return the nodes that round rows: QuantizeLinear, or those with a factor for each row."""
    node = value.producer()
    if node is None:
        return ()
    if is_op(node, "QuantizeLinear"):
        scale = None if node.inputs[1] is None else scope.array(node.inputs[1])
        return (node,) if scale is not None and scale.size == 1 else ()
    found, pending = dict[ir.Node, None](), [node]
    kinds = {"Cast", "Div", "Max", "Mul", "ReduceMax", "Abs"}
    while pending:
        one = pending.pop()
        if one in found or one.op_type not in kinds or one.domain or len(found) > len(kinds) + 1:
            continue
        found[one] = None
        if one.op_type == "Cast" and one is not node:
            continue  # to float32: the rows as they are
        pending += [made for each in one.inputs if each is not None and (made := each.producer())]
    ops = sorted(one.op_type for one in found)
    casts = [one for one in found if one.op_type == "Cast"]
    if set(ops) != kinds or len(ops) != len(kinds) + len(casts) - 1:
        return ()
    return tuple(found)


def is_centred(scope: Scope, node: ir.Node) -> bool:
    """Say whether there is no zero point, or none that is not 0."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is None:
        return True
    array = scope.array(zero)
    return array is not None and not np.any(array.astype(np.float32))

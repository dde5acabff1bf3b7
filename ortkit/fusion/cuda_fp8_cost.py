"""What products of matrices in eight-bit floats take on a GPU, as nodes and as one kernel.

ONNX Runtime has no product of such numbers: DequantizeLinear writes the matrix, and the rows, in
half precision first, and cuBLAS reads that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ortkit.fusion.cost import Prediction
from ortkit.fusion.cuda_cost import LAUNCH_NS
from ortkit.fusion.cuda_product_cost import Shape, blas_ns, predict_products
from ortkit.graph.dims import Size

#: What rows may be that are not known.
_ROWS = (128, 512, 2048, 8192)
#: Bytes of memory per nanosecond, and of a matrix that one row is multiplied by.
_BYTES, _READ = 3000.0, 2850.0
#: One row: what is not reading.
_ROW_NS = 2300.0
#: Many rows: multiply-adds twice, per nanosecond, and what a product takes besides.
_FLOPS, _START_NS = 1150e3, 4000.0


def predict_fp8(shape: Shape, *, is_narrow: bool) -> Prediction | None:
    """Return what a region of products takes as nodes, and as one kernel.

    Args:
        shape: Its sizes.
        is_narrow: Whether the rows have eight bits, too.

    Returns:
        None where there is no kernel: more rows than one in half precision.
    """
    if shape.rows != 1 and not is_narrow:
        return None
    each = [_predicted(shape, rows) for rows in (_ROWS if shape.rows is None else (shape.rows,))]
    return Prediction(sum(one.before_ns for one in each), sum(one.after_ns for one in each))


def _predicted(shape: Shape, rows: int) -> Prediction:
    numbers = float(shape.depth * shape.columns * shape.products)
    dequantized = shape.products * LAUNCH_NS + 3 * numbers / _BYTES
    return Prediction(
        dequantized + half_ns(replace(shape, rows=rows)),
        product_ns(shape, rows),
    )


def half_ns(shape: Shape) -> float:
    """Return what a product of known rows takes in half precision, with what is around it."""
    if shape.rows == 1:
        return min(predict_products(shape).before_ns, predict_products(shape).after_ns)
    assert shape.rows is not None
    behind = bool(shape.tail) * LAUNCH_NS
    return shape.products * blas_ns(shape, shape.rows) + behind


def product_ns(shape: Shape, rows: int) -> float:
    """Return what a kernel in eight bits takes."""
    numbers = float(shape.depth * shape.columns * shape.products)
    read = _ROW_NS + numbers / _READ
    if rows == 1:
        return read
    return max(read, _START_NS + 2.0 * rows * numbers / _FLOPS)


def predict_rounding(shape: Sequence[Size], nodes: int, *, is_normed: bool) -> Prediction:
    """Return what it takes to round rows: as nodes, one after the other, and as one kernel.

    Args:
        shape: Of the rows; a size that is not known counts as one.
        nodes: That round.
        is_normed: Whether their norm is in the kernel.
    """
    count = prod(size for size in shape if isinstance(size, int))
    before = (nodes + is_normed) * (LAUNCH_NS + 4.0 * count / _BYTES)
    return Prediction(before, rounding_ns(count))


def rounding_ns(count: int) -> float:
    """Return what one kernel takes to round so many numbers."""
    return LAUNCH_NS + 3.0 * count / _BYTES

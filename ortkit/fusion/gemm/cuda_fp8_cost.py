"""Times of matmuls with fp8 weights on a GPU, as nodes and as one kernel.

ONNX Runtime has no product of such numbers: DequantizeLinear writes the matrix, and the rows, in
half precision first, and cuBLAS reads that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ortkit.fusion.gemm.cuda_small_m_cost import Shape
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.cuda_cost_model import LAUNCH_NS
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.tuning.gemm_times import SMALL_M_MAX, fp8_ns, half_ns, rounding_ns

#: What rows may be that are not known.
_ROWS = (128, 512, 2048, 8192)


def predict_fp8(shape: Shape, *, is_narrow: bool) -> Prediction | None:
    """Return what a region of products takes as nodes, and as one kernel.

    Args:
        shape: Its sizes.
        is_narrow: True if the rows are fp8, too.

    Returns:
        None where there is no kernel: large M in half precision.
    """
    if not is_narrow and (shape.rows is None or shape.rows > SMALL_M_MAX):
        return None
    before = after = 0.0
    for rows in _ROWS if shape.rows is None else (shape.rows,):
        each = half_ns(rows, shape.depth, shape.columns)
        each += rounding_ns(shape.depth * shape.columns)
        before += shape.products * each + (bool(shape.epilogue_ops) + shape.is_normed) * LAUNCH_NS
        after += fp8_ns(rows, shape.depth, shape.columns * shape.products)
    return Prediction(before, after)


def predict_rounding(shape: Sequence[Size], nodes: int, *, is_normed: bool) -> Prediction:
    """Return what it takes to round rows: as nodes, one after the other, and as one kernel.

    Args:
        shape: Of the rows; a size that is not known counts as one.
        nodes: That round.
        is_normed: Whether their norm is in the kernel.
    """
    count = prod(size for size in shape if isinstance(size, int))
    return Prediction((nodes + is_normed) * rounding_ns(count), rounding_ns(count))

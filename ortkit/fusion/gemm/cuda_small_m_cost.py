"""Measured times of small-M matmuls on a GPU, of cuBLAS and of ours.

On an H100, float16, in CUDA graphs, matrices of 80 MB in rotation so that they come from memory
(2026-11-22), microseconds, torch's product alone, with one kernel for the norm and one for the
epilogue, and ours, of [depth, columns]:

| | product | with norm and epilogue | ours |
| --- | ---: | ---: | ---: |
| 768 x 2,304, norm | 4.4 | 6.0 | 3.8 |
| 2,048 x 2,048, residual | 6.4 | 7.9 | 5.3 |
| 3,072 x 768, residual | 6.6 | 7.6 | 4.4 |
| 2,048 x 3,072, norm | 7.6 | 9.1 | 7.2 |
| 5,632 x 2,048, residual | 12.4 | 13.5 | 10.8 |
| 2,048 x 2 * 5,632, norm, gated | 18.1 | 21.7 | 18.5 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.cuda_cost_model import LAUNCH_NS

#: Time of a launch in ns, and bytes of the weight per ns.
_THEIRS, _OURS = (3400.0, 3000.0), (2300.0, 2850.0)
#: Time of a norm prologue in ns.
_NORM_NS = 300.0
_HALF = 2
#: Depth and columns -> rows, and nanoseconds of torch's product with a kernel for sum and norm
#: behind, and of ours; measured as above. Ours were ahead up to 256 rows, too, but not in a model:
#: of 197 rows of 3,072 a vit's take 11.0 with the norm, and ONNX Runtime's own 10.4.
_SPLIT_K: Mapping[tuple[int, int], tuple[tuple[int, float, float], ...]] = {
    (1536, 384): ((4, 6520, 4880), (16, 6760, 4930), (64, 6850, 5260), (128, 7100, 5540)),
    (3072, 768): ((4, 8250, 7150), (16, 8380, 7160), (64, 8650, 7380), (128, 9480, 8060)),
    (4096, 1024): ((4, 9120, 8200), (16, 9290, 8200), (64, 9740, 8330), (128, 11050, 9190)),
}
#: What is like these: the depth against the columns, and the columns.
_LEAST_DEPTH, _COLUMNS = 3, (256, 1280)


@dataclass(frozen=True)
class Shape:
    """Sizes of matmuls with the same first operand, and of their prologue and epilogue.

    Args:
        rows: M; None where it is dynamic.
        depth: K.
        columns: N of one matmul.
        products: One, or two of a gated pair.
        epilogue_ops: Nodes of the epilogue.
        is_normed: True for a matmul with a norm prologue.
        count: Batch size, with a weight for each; None where it is dynamic.
    """

    rows: int | None
    depth: int
    columns: int
    products: int
    epilogue_ops: int
    is_normed: bool
    count: int | None = 1


def predict_products(shape: Shape) -> Prediction:
    """Return the times of a GEMV region before and after fusion; equal times for more rows."""
    moved = float(_HALF * shape.depth * shape.columns * shape.products)
    before = shape.products * _THEIRS[0] + moved / _THEIRS[1]
    if shape.rows != 1:
        return Prediction(before, before)
    before += (bool(shape.epilogue_ops) + shape.is_normed) * LAUNCH_NS
    return Prediction(before, _OURS[0] + moved / _OURS[1] + shape.is_normed * _NORM_NS)


def predict_split_k(shape: Shape) -> Prediction | None:
    """Return what a product with a sum and a norm after it takes before and after.

    None where nothing similar was measured, or cuBLAS was faster. Square weights gain less than a
    microsecond, wider ones nothing.
    """
    rows, (least, most) = shape.rows, _COLUMNS
    if shape.depth < _LEAST_DEPTH * shape.columns or not least <= shape.columns <= most:
        return None
    moved = shape.depth * shape.columns
    points = _SPLIT_K[min(_SPLIT_K, key=lambda one: abs(one[0] * one[1] - moved))]
    if rows is None or not 1 < rows <= points[-1][0]:
        return None
    (start, before, after), *others = points
    for end, low, high in others:
        if rows <= end:
            part = max(0.0, (rows - start) / (end - start))
            return Prediction(before + part * (low - before), after + part * (high - after))
        start, before, after = end, low, high
    return None

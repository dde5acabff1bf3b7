"""What products of one row take on a GPU by cuBLAS and by ours, as measured.

On an H100, float16, in CUDA graphs, matrices of 80 MB in turns so that they come from memory
(2026-11-22), microseconds, torch's product alone, with a kernel for the norm before and one for
what follows, and ours, of [depth, columns]:

| | product | with norm and tail | ours |
| --- | ---: | ---: | ---: |
| 768 x 2,304, norm | 4.4 | 6.0 | 3.8 |
| 2,048 x 2,048, residual | 6.4 | 7.9 | 5.3 |
| 3,072 x 768, residual | 6.6 | 7.6 | 4.4 |
| 2,048 x 3,072, norm | 7.6 | 9.1 | 7.2 |
| 5,632 x 2,048, residual | 12.4 | 13.5 | 10.8 |
| 2,048 x 2 * 5,632, norm, gated | 18.1 | 21.7 | 18.5 |
"""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.fusion.cost import Prediction
from ortkit.fusion.cuda_cost import LAUNCH_NS

#: Nanoseconds of a launch, and bytes of the matrix per nanosecond.
_THEIRS, _OURS = (3400.0, 3000.0), (2300.0, 2850.0)
#: A norm in the kernel.
_NORM_NS = 300.0
_HALF = 2


@dataclass(frozen=True)
class Shape:
    """Sizes of products of the same rows, and of what is around them.

    Args:
        rows: None where known at run time only.
        depth: Multiply-adds of an element.
        columns: Of one product.
        products: One or two.
        tail: Nodes behind.
        is_normed: Whether the rows have a norm before.
    """

    rows: int | None
    depth: int
    columns: int
    products: int
    tail: int
    is_normed: bool


def predict_products(shape: Shape) -> Prediction:
    """Return what a region takes before and after; the same where there is no kernel for it."""
    moved = float(_HALF * shape.depth * shape.columns * shape.products)
    before = shape.products * _THEIRS[0] + moved / _THEIRS[1]
    if shape.rows != 1:
        return Prediction(before, before)
    before += (bool(shape.tail) + shape.is_normed) * LAUNCH_NS
    return Prediction(before, _OURS[0] + moved / _OURS[1] + shape.is_normed * _NORM_NS)

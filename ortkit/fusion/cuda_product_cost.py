"""What products of few rows take on a GPU by cuBLAS and by ours, as measured.

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

from collections.abc import Mapping
from dataclasses import dataclass

from ortkit.fusion.cost import Prediction
from ortkit.fusion.cuda_cost import LAUNCH_NS

#: Nanoseconds of a launch, and bytes of the matrix per nanosecond.
_THEIRS, _OURS = (3400.0, 3000.0), (2300.0, 2850.0)
#: A norm in the kernel.
_NORM_NS = 300.0
_HALF = 2
#: Depth and columns -> rows, and nanoseconds of torch's product with a kernel for sum and norm
#: behind, and of ours; measured as above. Ours were ahead up to 256 rows, too, but not in a model:
#: of 197 rows of 3,072 a vit's take 11.0 with the norm, and ONNX Runtime's own 10.4.
_JOINED: Mapping[tuple[int, int], tuple[tuple[int, float, float], ...]] = {
    (1536, 384): ((4, 6520, 4880), (16, 6760, 4930), (64, 6850, 5260), (128, 7100, 5540)),
    (3072, 768): ((4, 8250, 7150), (16, 8380, 7160), (64, 8650, 7380), (128, 9480, 8060)),
    (4096, 1024): ((4, 9120, 8200), (16, 9290, 8200), (64, 9740, 8330), (128, 11050, 9190)),
}
#: What is like these: the depth against the columns, and the columns.
_LEAST_DEPTH, _COLUMNS = 3, (256, 1280)


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
    """Return what a region takes before and after; the same for more rows than one."""
    moved = float(_HALF * shape.depth * shape.columns * shape.products)
    before = shape.products * _THEIRS[0] + moved / _THEIRS[1]
    if shape.rows != 1:
        return Prediction(before, before)
    before += (bool(shape.tail) + shape.is_normed) * LAUNCH_NS
    return Prediction(before, _OURS[0] + moved / _OURS[1] + shape.is_normed * _NORM_NS)


def predict_joined(shape: Shape) -> Prediction | None:
    """Return what a product with a sum and a norm behind takes before and after.

    None where nothing like it was measured, or cuBLAS was faster: square ones gain less than a
    microsecond, wider ones nothing.
    """
    rows, (least, most) = shape.rows, _COLUMNS
    if shape.depth < _LEAST_DEPTH * shape.columns or not least <= shape.columns <= most:
        return None
    moved = shape.depth * shape.columns
    points = _JOINED[min(_JOINED, key=lambda one: abs(one[0] * one[1] - moved))]
    if rows is None or not 1 < rows <= points[-1][0]:
        return None
    (start, before, after), *others = points
    for end, low, high in others:
        if rows <= end:
            part = max(0.0, (rows - start) / (end - start))
            return Prediction(before + part * (low - before), after + part * (high - after))
        start, before, after = end, low, high
    return None


@dataclass(frozen=True)
class _Tiles:
    """How long tiles of one size take, nanoseconds.

    Args:
        rows: Of one.
        columns: Of one, of each of two matrices.
        at_once: That a GPU works on.
        step_ns: Of 64 of the depth.
        tile_ns: Of each tile besides.
        start_ns: Of all together.
    """

    rows: int
    columns: int
    at_once: int
    step_ns: float
    tile_ns: float
    start_ns: float

    def count(self, shape: Shape, rows: int) -> int:
        """Return the number of tiles."""
        return -(-rows // self.rows) * -(-shape.columns // self.columns)

    def nanoseconds(self, shape: Shape, rows: int) -> float:
        """Return the time of all of them."""
        turns = -(-self.count(shape, rows) // self.at_once)
        steps = -(-shape.depth // _STEP)
        return self.start_ns + turns * (self.tile_ns + steps * self.step_ns)


#: As `custom_ops/triton/gemm_tiles.py` chooses them: the last of a row takes any number.
_TILED = {
    1: (
        _Tiles(64, 64, 132, 125, 900, 3000),
        _Tiles(64, 128, 132, 220, 1900, 2700),
        _Tiles(64, 128, 264, 360, 2000, 2700),
        _Tiles(128, 128, 132, 385, 1700, 3500),
    ),
    2: (_Tiles(128, 64, 132, 380, 600, 3500),),
}
_STEP = 64
#: Rows, and depth and columns, from which on they were measured; what rows may be that are not
#: known.
_LEAST_ROWS, _LEAST, _ROWS = 100, 256, (128, 512, 2048, 8192)
#: cuBLAS: what a product takes at least, and floating-point operations per nanosecond.
_BLAS_NS, _BLAS_LEAST_NS, _BLAS_FLOPS = 4000.0, 2400.0, 680e3
#: What lies in the cache is read by what follows at more than the memory's bandwidth.
_CACHE, _CACHED, _UNCACHED = 20e6, 5000.0, 3100.0


def predict_tiled(shape: Shape) -> Prediction | None:
    """Return what products of many rows take with what follows them, before and after.

    None where nothing follows, or the sizes are smaller than what was measured. Rows that are not
    known are taken for several numbers. The times are those of a fit to what was measured, within
    a tenth mostly (`docs/gpu-results.md`).
    """
    least = min(shape.depth, shape.columns)
    if not shape.tail or least < _LEAST or (shape.rows or _LEAST_ROWS) < _LEAST_ROWS:
        return None
    each = [_tiled(shape, rows) for rows in (_ROWS if shape.rows is None else (shape.rows,))]
    return Prediction(sum(one.before_ns for one in each), sum(one.after_ns for one in each))


def blas_ns(shape: Shape, rows: int) -> float:
    """Return what cuBLAS takes for one product of many rows."""
    numbers = float(shape.depth * shape.columns)
    return max(
        _BLAS_NS + max(2.0 * rows * numbers / _BLAS_FLOPS, _BLAS_LEAST_NS),
        _THEIRS[0] + _HALF * numbers / _THEIRS[1],
    )


def _tiled(shape: Shape, rows: int) -> Prediction:
    elements, matrix = float(rows * shape.columns), _HALF * float(shape.depth * shape.columns)
    product = blas_ns(shape, rows)
    moved = _HALF * (shape.products + 1) * elements
    behind = LAUNCH_NS + moved / (_CACHED if moved <= _CACHE else _UNCACHED)
    tiles = _TILED[shape.products]
    chosen = next((one for one in tiles if one.count(shape, rows) <= one.at_once), tiles[-1])
    read = _OURS[0] + shape.products * matrix / _OURS[1]
    return Prediction(
        shape.products * product + behind, max(chosen.nanoseconds(shape, rows), read)
    )

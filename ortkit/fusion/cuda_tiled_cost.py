"""What products of many rows take on a GPU by cuBLAS and by ours: fits to what was measured.

On an H100, float16, in CUDA graphs, matrices of 80 MB in turns (2026-11-22): `docs/gpu-results.md`
has the numbers. They are within a tenth of them mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ortkit.fusion.cost import Prediction
from ortkit.fusion.cuda_cost import LAUNCH_NS
from ortkit.fusion.cuda_product_cost import Shape, predict_products


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

    def count(self, shape: Shape, rows: int, count: int = 1) -> int:
        """Return the number of tiles of so many products."""
        return count * -(-rows // self.rows) * -(-shape.columns // self.columns)

    def nanoseconds(self, shape: Shape, rows: int, count: int = 1) -> float:
        """Return the time of all of them."""
        turns = -(-self.count(shape, rows, count) // self.at_once)
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
    2: (_Tiles(128, 64, 132, 365, 600, 3500),),
}
_STEP = 64
#: Deep products of which each multiprocessor has one tile, and no more than a sum behind: those
#: that fill most of them; what each further node costs.
_DEEP = (_Tiles(64, 128, 132, 182, 1200, 2700), _Tiles(64, 192, 132, 240, 1500, 2700))
_LEAST_DEPTH, _LEAST_TILES, _NODE_NS = 1536, 96, 500.0
#: Rows, and depth and columns, from which on they were measured; what rows may be that are not
#: known.
_LEAST_ROWS, _LEAST, _ROWS = 100, 256, (128, 512, 2048, 8192)
#: The same for many products; how many they may be.
_LEAST_OF_MANY, _COUNTS = 64, (4, 32)
#: cuBLAS: what a product takes at least, and floating-point operations per nanosecond.
_BLAS_NS, _BLAS_LEAST_NS, _BLAS_FLOPS = 4000.0, 2400.0, 680e3
#: The same of deep ones of few rows, and of many products, those with bytes per nanosecond.
_DEEP_BLAS, _MANY_BLAS = (3400.0, 590e3), (2600.0, 640e3, 2700.0)
#: A matrix that is read once: bytes per nanosecond of theirs and of ours; ours for many.
_THEIR_START, _THEIR_BYTES, _START, _BYTES, _MANY_BYTES = 3400.0, 3000.0, 2300.0, 2850.0, 2450.0
#: What lies in the cache is read by what follows at more than the memory's bandwidth.
_CACHE, _CACHED, _UNCACHED = 20e6, 5000.0, 3100.0
_HALF = 2


def predict_tiled(shape: Shape) -> Prediction | None:
    """Return what products of many rows take with what follows them, before and after.

    None where nothing follows, but for deep ones, or the sizes are smaller than what was measured.
    Rows that are not known are taken for several numbers.
    """
    least = min(shape.depth, shape.columns)
    if least < _LEAST or (shape.rows or _LEAST_ROWS) < _LEAST_ROWS:
        return None
    if shape.rows is not None and (deep := _deep(shape, shape.rows)) is not None:
        return deep
    return _sum(shape, lambda rows, _: _tiled(shape, rows)) if shape.tail else None


def predict_batched(shape: Shape) -> Prediction | None:
    """Return what many products take with what follows them, before and after.

    None where nothing follows, or the sizes are smaller than what was measured. Rows and counts
    that are not known are taken for several numbers.
    """
    least = min(shape.depth, shape.columns, shape.rows or _LEAST_OF_MANY)
    if not shape.tail or least < _LEAST_OF_MANY:
        return None
    return _sum(shape, lambda rows, count: _batched(shape, rows, count))


def predict_halved(shape: Shape) -> Prediction | None:
    """Return what two products that meet take as one with a kernel behind, and in ours.

    None where they would not be taken.
    """
    found = predict_products(shape) if shape.rows == 1 else predict_tiled(shape)
    if found is None:
        return None
    one = replace(shape, columns=shape.products * shape.columns)
    known = _ROWS if shape.rows is None else (shape.rows,)
    before = sum(
        blas_ns(one, rows) + _behind(float(rows * shape.columns), shape.products) for rows in known
    )
    return Prediction(before, found.after_ns)


def blas_ns(shape: Shape, rows: int) -> float:
    """Return what cuBLAS takes for one product of many rows."""
    numbers = float(shape.depth * shape.columns)
    return max(
        _BLAS_NS + max(2.0 * rows * numbers / _BLAS_FLOPS, _BLAS_LEAST_NS),
        _THEIR_START + _HALF * numbers / _THEIR_BYTES,
    )


def _sum(shape: Shape, predict: Callable[[int, int], Prediction]) -> Prediction:
    """Return the times of all numbers that rows and counts may be, together."""
    each = [
        predict(rows, count)
        for rows in (_ROWS if shape.rows is None else (shape.rows,))
        for count in (_COUNTS if shape.count is None else (shape.count,))
    ]
    return Prediction(sum(one.before_ns for one in each), sum(one.after_ns for one in each))


def _behind(elements: float, read: int) -> float:
    """Return what a kernel takes that reads so many tensors and writes one."""
    moved = _HALF * (read + 1) * elements
    return LAUNCH_NS + moved / (_CACHED if moved <= _CACHE else _UNCACHED)


def _deep(shape: Shape, rows: int) -> Prediction | None:
    """Return the times of a deep product; None if it is another one."""
    chosen = next((one for one in _DEEP if one.count(shape, rows) <= one.at_once), None)
    if chosen is None or shape.depth < _LEAST_DEPTH or shape.products > 1:
        return None
    if chosen.count(shape, rows) < _LEAST_TILES:
        return None
    elements, (start, rate) = float(rows * shape.columns), _DEEP_BLAS
    matrix = _HALF * float(shape.depth * shape.columns)
    before = max(start + 2.0 * elements * shape.depth / rate, _THEIR_START + matrix / _THEIR_BYTES)
    before += _behind(elements, 1) if shape.tail else 0.0
    after = max(chosen.nanoseconds(shape, rows), _START + matrix / _BYTES)
    return Prediction(before, after + max(0, shape.tail - 1) * _NODE_NS)


def _tiled(shape: Shape, rows: int) -> Prediction:
    elements, matrix = float(rows * shape.columns), _HALF * float(shape.depth * shape.columns)
    before = shape.products * blas_ns(shape, rows) + _behind(elements, shape.products)
    read = _START + shape.products * matrix / _BYTES
    return Prediction(before, max(_tiles(shape, rows).nanoseconds(shape, rows), read))


def _tiles(shape: Shape, rows: int, count: int = 1) -> _Tiles:
    tiles = _TILED[shape.products]
    fitting = (one for one in tiles if one.count(shape, rows, count) <= one.at_once)
    return next(fitting, tiles[-1])


def _batched(shape: Shape, rows: int, count: int) -> Prediction:
    elements, matrix = float(rows * shape.columns), float(shape.depth * shape.columns)
    start, rate, speed = _MANY_BLAS
    given, made = _HALF * count * (matrix + rows * shape.depth), _HALF * count * elements
    product = start + max(2.0 * count * elements * shape.depth / rate, (given + made) / speed)
    before = shape.products * product + _behind(count * elements, shape.products)
    # The left factor is read once, and what is made written once.
    moved = given + made + (shape.products - 1) * _HALF * count * matrix
    tiles = _tiles(shape, rows, count).nanoseconds(shape, rows, count)
    return Prediction(before, max(tiles, start + moved / _MANY_BYTES))

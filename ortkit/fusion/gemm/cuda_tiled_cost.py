"""Times of large-M matmuls on a GPU, of cuBLAS and of ours, fitted to measurements.

On an H100, float16, in CUDA graphs, matrices of 80 MB in rotation (2026-11-22):
`docs/benchmarks/gpu.md` has the numbers. They are within a tenth of them mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ortkit.fusion.gemm.cuda_small_m_cost import Shape, predict_products
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.cuda_cost_model import LAUNCH_NS


@dataclass(frozen=True)
class _Tiles:
    """Times of tiles of one size, in ns.

    Args:
        rows: M of one tile.
        columns: N of one tile, of each of two weights.
        concurrent_tiles: Tiles that the GPU runs at once.
        k_step_ns: Time of 64 elements of K.
        tile_ns: Additional time of each tile.
        launch_ns: Fixed time of one launch.
    """

    rows: int
    columns: int
    concurrent_tiles: int
    k_step_ns: float
    tile_ns: float
    launch_ns: float

    def count(self, shape: Shape, rows: int, count: int = 1) -> int:
        """Return the number of tiles of `count` matmuls."""
        return count * -(-rows // self.rows) * -(-shape.columns // self.columns)

    def nanoseconds(self, shape: Shape, rows: int, count: int = 1) -> float:
        """Return the time of all tiles."""
        turns = -(-self.count(shape, rows, count) // self.concurrent_tiles)
        steps = -(-shape.depth // _STEP)
        return self.launch_ns + turns * (self.tile_ns + steps * self.k_step_ns)


#: As `custom_ops/triton/gemm/gemm_tiles.py` chooses them: the last of a row takes any number.
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
#: The same for batched matmuls; the batch sizes they may have.
_MIN_BATCHED, _COUNTS = 64, (4, 32)
#: cuBLAS: what a product takes at least, and floating-point operations per nanosecond.
_BLAS_NS, _BLAS_LEAST_NS, _BLAS_FLOPS = 4000.0, 2400.0, 680e3
#: The same of large-K matmuls with small M, and of batched ones, those with bytes per ns.
_DEEP_BLAS, _BATCHED_BLAS = (3400.0, 590e3), (2600.0, 640e3, 2700.0)
#: A weight that is read once: bytes per ns of theirs and of ours; ours for batched ones.
_THEIR_START, _THEIR_BYTES, _START, _BYTES, _BATCHED_BYTES = 3400.0, 3000.0, 2300.0, 2850.0, 2450.0
#: A consumer reads what lies in the cache at more than the memory's bandwidth.
_CACHE, _CACHED, _UNCACHED = 20e6, 5000.0, 3100.0
_HALF = 2


def predict_tiled(shape: Shape) -> Prediction | None:
    """Return the times of large-M matmuls with their epilogue, before and after fusion.

    None where nothing follows, but for deep ones, or the sizes are smaller than what was measured.
    Rows that are not known are taken for several numbers.
    """
    least = min(shape.depth, shape.columns)
    if least < _LEAST or (shape.rows or _LEAST_ROWS) < _LEAST_ROWS:
        return None
    if shape.rows is not None and (deep := _deep(shape, shape.rows)) is not None:
        return deep
    return _sum(shape, lambda rows, _: _tiled(shape, rows)) if shape.epilogue_ops else None


def predict_batched(shape: Shape) -> Prediction | None:
    """Return the times of batched matmuls with their epilogue, before and after fusion.

    None where nothing follows, or the sizes are smaller than what was measured. Rows and counts
    that are not known are taken for several numbers.
    """
    least = min(shape.depth, shape.columns, shape.rows or _MIN_BATCHED)
    if not shape.epilogue_ops or least < _MIN_BATCHED:
        return None
    return _sum(shape, lambda rows, count: _batched(shape, rows, count))


def predict_gate_up(shape: Shape) -> Prediction | None:
    """Return the times of a gated pair: as one matmul with an epilogue kernel, and fused.

    None where they would not be fused.
    """
    found = predict_products(shape) if shape.rows == 1 else predict_tiled(shape)
    if found is None:
        return None
    one = replace(shape, columns=shape.products * shape.columns)
    known = _ROWS if shape.rows is None else (shape.rows,)
    before = sum(
        blas_ns(one, rows) + _epilogue_ns(float(rows * shape.columns), shape.products)
        for rows in known
    )
    return Prediction(before, found.after_ns)


def blas_ns(shape: Shape, rows: int) -> float:
    """Return the time of cuBLAS for one large-M matmul."""
    numbers = float(shape.depth * shape.columns)
    return max(
        _BLAS_NS + max(2.0 * rows * numbers / _BLAS_FLOPS, _BLAS_LEAST_NS),
        _THEIR_START + _HALF * numbers / _THEIR_BYTES,
    )


def _sum(shape: Shape, predict: Callable[[int, int], Prediction]) -> Prediction:
    """Return the sum of the times over all values that M and the batch may have."""
    each = [
        predict(rows, count)
        for rows in (_ROWS if shape.rows is None else (shape.rows,))
        for count in (_COUNTS if shape.count is None else (shape.count,))
    ]
    return Prediction(sum(one.before_ns for one in each), sum(one.after_ns for one in each))


def _epilogue_ns(elements: float, read: int) -> float:
    """Return the time of an elementwise kernel that reads `read` tensors and writes one."""
    moved = _HALF * (read + 1) * elements
    return LAUNCH_NS + moved / (_CACHED if moved <= _CACHE else _UNCACHED)


def _deep(shape: Shape, rows: int) -> Prediction | None:
    """Return the times of a large-K matmul; None for any other."""
    chosen = next((one for one in _DEEP if one.count(shape, rows) <= one.concurrent_tiles), None)
    if chosen is None or shape.depth < _LEAST_DEPTH or shape.products > 1:
        return None
    if chosen.count(shape, rows) < _LEAST_TILES:
        return None
    elements, (start, rate) = float(rows * shape.columns), _DEEP_BLAS
    matrix = _HALF * float(shape.depth * shape.columns)
    before = max(start + 2.0 * elements * shape.depth / rate, _THEIR_START + matrix / _THEIR_BYTES)
    before += _epilogue_ns(elements, 1) if shape.epilogue_ops else 0.0
    after = max(chosen.nanoseconds(shape, rows), _START + matrix / _BYTES)
    return Prediction(before, after + max(0, shape.epilogue_ops - 1) * _NODE_NS)


def _tiled(shape: Shape, rows: int) -> Prediction:
    elements, matrix = float(rows * shape.columns), _HALF * float(shape.depth * shape.columns)
    before = shape.products * blas_ns(shape, rows) + _epilogue_ns(elements, shape.products)
    read = _START + shape.products * matrix / _BYTES
    return Prediction(before, max(_tiles(shape, rows).nanoseconds(shape, rows), read))


def _tiles(shape: Shape, rows: int, count: int = 1) -> _Tiles:
    tiles = _TILED[shape.products]
    fitting = (one for one in tiles if one.count(shape, rows, count) <= one.concurrent_tiles)
    return next(fitting, tiles[-1])


def _batched(shape: Shape, rows: int, count: int) -> Prediction:
    elements, matrix = float(rows * shape.columns), float(shape.depth * shape.columns)
    start, rate, speed = _BATCHED_BLAS
    given, made = _HALF * count * (matrix + rows * shape.depth), _HALF * count * elements
    product = start + max(2.0 * count * elements * shape.depth / rate, (given + made) / speed)
    before = shape.products * product + _epilogue_ns(count * elements, shape.products)
    # The left factor is read once, and what is made written once.
    moved = given + made + (shape.products - 1) * _HALF * count * matrix
    tiles = _tiles(shape, rows, count).nanoseconds(shape, rows, count)
    return Prediction(before, max(tiles, start + moved / _BATCHED_BYTES))

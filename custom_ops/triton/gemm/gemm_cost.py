"""Times of large-M matmuls on a GPU, of cuBLAS and of ours, fitted to measurements.

On an H100, float16, in CUDA graphs, matrices of 80 MB in rotation (2026-11-22):
`docs/benchmarks/gpu_kernels.md` has the numbers. They are within a tenth of them mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ortkit.kernels.anchor import ProductSizes
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS

from .gemm_tiles import LEAST_DEPTH, PROCESSORS

#: Nanoseconds before and after.
Times: TypeAlias = tuple[float, float]


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

    def count(self, sizes: ProductSizes, rows: int, count: int = 1) -> int:
        """Return the number of tiles of `count` matmuls."""
        return count * -(-rows // self.rows) * -(-sizes.columns // self.columns)

    def nanoseconds(self, sizes: ProductSizes, rows: int, count: int = 1) -> float:
        """Return the time of all tiles."""
        turns = -(-self.count(sizes, rows, count) // self.concurrent_tiles)
        steps = -(-sizes.depth // _STEP)
        return self.launch_ns + turns * (self.tile_ns + steps * self.k_step_ns)


#: As `gemm_tiles` chooses them: the last of a row takes any number.
_TILED = {
    1: (
        _Tiles(64, 64, PROCESSORS, 125, 900, 3000),
        _Tiles(64, 128, PROCESSORS, 220, 1900, 2700),
        _Tiles(64, 128, 2 * PROCESSORS, 360, 2000, 2700),
        _Tiles(128, 128, PROCESSORS, 385, 1700, 3500),
    ),
    2: (_Tiles(128, 64, PROCESSORS, 365, 600, 3500),),
}
_STEP = 64
#: Deep products of which each multiprocessor has one tile, and no more than a sum behind: those
#: that fill most of them; what each further node costs.
_DEEP = (
    _Tiles(64, 128, PROCESSORS, 182, 1200, 2700),
    _Tiles(64, 192, PROCESSORS, 240, 1500, 2700),
)
_LEAST_TILES, _NODE_NS = 96, 500.0
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


def tiled_ns(sizes: ProductSizes) -> Times | None:
    """Return the times of large-M matmuls with their epilogue, before and after fusion.

    None where nothing follows but a bias, but for deep ones, or the sizes are smaller than what
    was measured. Rows that are not known are taken for several numbers.
    """
    least = min(sizes.depth, sizes.columns)
    if sizes.is_normed or least < _LEAST or (sizes.rows or _LEAST_ROWS) < _LEAST_ROWS:
        return None
    sizes = replace(sizes, epilogue_ops=sizes.epilogue_ops - sizes.biases)
    if sizes.rows is not None and (deep := _deep(sizes, sizes.rows)) is not None:
        return deep
    return _sum(sizes, lambda rows, _: _tiled(sizes, rows)) if sizes.epilogue_ops else None


def batched_ns(sizes: ProductSizes) -> Times | None:
    """Return the times of batched matmuls with their epilogue, before and after fusion.

    None where nothing follows, or the sizes are smaller than what was measured. Rows and counts
    that are not known are taken for several numbers.
    """
    least = min(sizes.depth, sizes.columns, sizes.rows or _MIN_BATCHED)
    if not sizes.epilogue_ops or least < _MIN_BATCHED:
        return None
    return _sum(sizes, lambda rows, count: _batched(sizes, rows, count))


def merged_ns(sizes: ProductSizes) -> float:
    """Return the time of a gated pair as one matmul, with an epilogue kernel."""
    product_sizes = replace(sizes, columns=sizes.products * sizes.columns)
    known = _ROWS if sizes.rows is None else (sizes.rows,)
    return sum(
        blas_ns(product_sizes, rows) + _epilogue_ns(float(rows * sizes.columns), sizes.products)
        for rows in known
    )


def blas_ns(sizes: ProductSizes, rows: int) -> float:
    """Return the time of cuBLAS for one large-M matmul."""
    numbers = float(sizes.depth * sizes.columns)
    return max(
        _BLAS_NS + max(2.0 * rows * numbers / _BLAS_FLOPS, _BLAS_LEAST_NS),
        _THEIR_START + _HALF * numbers / _THEIR_BYTES,
    )


def _sum(sizes: ProductSizes, estimate: Callable[[int, int], Times]) -> Times:
    """Return the sums of the times over all values that M and the batch may have."""
    each = [
        estimate(rows, count)
        for rows in (_ROWS if sizes.rows is None else (sizes.rows,))
        for count in (_COUNTS if sizes.count is None else (sizes.count,))
    ]
    return sum(before for before, _ in each), sum(after for _, after in each)


def _epilogue_ns(elements: float, read: int) -> float:
    """Return the time of an elementwise kernel that reads `read` tensors and writes one."""
    moved = _HALF * (read + 1) * elements
    return LAUNCH_NS + moved / (_CACHED if moved <= _CACHE else _UNCACHED)


def _deep(sizes: ProductSizes, rows: int) -> Times | None:
    """Return the times of a large-K matmul; None for any other."""
    chosen = next(
        (tiles for tiles in _DEEP if tiles.count(sizes, rows) <= tiles.concurrent_tiles), None
    )
    if chosen is None or sizes.depth < LEAST_DEPTH or sizes.products > 1:
        return None
    if chosen.count(sizes, rows) < _LEAST_TILES:
        return None
    elements, (start, rate) = float(rows * sizes.columns), _DEEP_BLAS
    matrix = _HALF * float(sizes.depth * sizes.columns)
    before = max(start + 2.0 * elements * sizes.depth / rate, _THEIR_START + matrix / _THEIR_BYTES)
    before += _epilogue_ns(elements, 1) if sizes.epilogue_ops else 0.0
    after = max(chosen.nanoseconds(sizes, rows), _START + matrix / _BYTES)
    return before, after + max(0, sizes.epilogue_ops - 1) * _NODE_NS


def _tiled(sizes: ProductSizes, rows: int) -> Times:
    elements, matrix = float(rows * sizes.columns), _HALF * float(sizes.depth * sizes.columns)
    before = sizes.products * blas_ns(sizes, rows) + _epilogue_ns(elements, sizes.products)
    read = _START + sizes.products * matrix / _BYTES
    return before, max(_tiles(sizes, rows).nanoseconds(sizes, rows), read)


def _tiles(sizes: ProductSizes, rows: int, count: int = 1) -> _Tiles:
    tiles = _TILED[sizes.products]
    fitting = (tile for tile in tiles if tile.count(sizes, rows, count) <= tile.concurrent_tiles)
    return next(fitting, tiles[-1])


def _batched(sizes: ProductSizes, rows: int, count: int) -> Times:
    elements, matrix = float(rows * sizes.columns), float(sizes.depth * sizes.columns)
    start, rate, speed = _BATCHED_BLAS
    given, made = _HALF * count * (matrix + rows * sizes.depth), _HALF * count * elements
    product = start + max(2.0 * count * elements * sizes.depth / rate, (given + made) / speed)
    before = sizes.products * product + _epilogue_ns(count * elements, sizes.products)
    # The left factor is read once, and what is made written once.
    moved = given + made + (sizes.products - 1) * _HALF * count * matrix
    tiles = _tiles(sizes, rows, count).nanoseconds(sizes, rows, count)
    return before, max(tiles, start + moved / _BATCHED_BYTES)

"""Which tiles products of a row and constant matrices are computed in on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..conv.conv_tiles import power

if TYPE_CHECKING:
    from ...forms.gemm import Products

#: Up to this many columns a block has 4 of them, measured on an H100 (2026-11).
_NARROW = 2560
#: Rows of the smallest tile, and of narrow ones; blocks that a GPU has work with, parts of a depth
#: at most, and what is deep enough for four of them in any case.
_FEW, _NARROW_ROWS, _BLOCKS, _MOST_PARTS = 16, 64, 100, 8
_DEEP, _DEEP_PARTS = 768, 4
#: Elements of a row whose statistics are summed at once.
_STATISTICS = 4096


@dataclass(frozen=True)
class Strip:
    """The part of a thread block in a GEMV: some columns, with all of K.

    Args:
        columns: Of the result.
        depth: Of one step.
        warps: Of 32 threads.
        statistics: Elements of the row that are summed at once for its norm.
    """

    columns: int
    depth: int
    warps: int
    statistics: int

    def __post_init__(self) -> None:
        """Hold what Triton asks of a block: powers of two."""
        sizes = self.columns, self.depth, self.statistics
        assert all(size.bit_count() == 1 for size in sizes)


def strip_of(form: Products) -> Strip:
    """Return the part of one block."""
    columns, depth = (4, 1024) if form.columns <= _NARROW else (8, 512)
    if len(form.weights) > 1:
        columns, depth = 16, 256
    most = power(form.depth)
    return Strip(columns, min(depth, most), 4, min(_STATISTICS, most))


@dataclass(frozen=True)
class KSplit:
    """The tile of a thread block in a split-K matmul, and its part of K.

    Args:
        rows: Of the tile.
        columns: Of the tile.
        depth: Of one step.
        each: Elements of K of a part, a multiple of a step.
        warps: Of 32 threads.
        stages: Steps that are loaded ahead.
    """

    rows: int
    columns: int
    depth: int
    each: int
    warps: int
    stages: int


def k_split_of(rows: int, depth: int, columns: int) -> KSplit:
    """Return the tiles and the split of K of a matmul with a norm after it, as measured on an
    H100."""
    height, width, step, stages = (16 if rows <= _FEW else 64), 32, 128, 4
    if rows > _NARROW_ROWS:
        width, step, stages = 64, 64, 5
    step = min(step, max(16, power(depth)))
    tiles = -(-rows // height) * -(-columns // width)
    steps = -(-depth // step)
    count = max(round(_BLOCKS / tiles), min(_DEEP_PARTS, depth // _DEEP))
    count = max(1, min(count, _MOST_PARTS, steps // 2))
    return KSplit(height, width, step, -(-steps // count) * step, 4, stages)

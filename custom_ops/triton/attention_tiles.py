"""Blocks of queries and keys, warps and stages, by what was measured.

On an H100, float16, batch 1, 12 or 16 heads, 512 to 8,192 queries and keys (2026-11): of blocks
of 64 and 128 queries and 32 to 128 keys, 4 and 8 warps and 2 to 4 stages, those below were the
fastest or within 3 percent of it. Few registers decide where heads are narrow, as more blocks then
run side by side; blocks of 128 queries pay from wide heads on, where there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import Extent

from .attention_form import AttentionForm

#: Rows of all heads from which on there are enough blocks of 128 for a GPU.
_MANY_ROWS = 24_000
#: Where large blocks were measured.
_MEASURED = (90,)


@dataclass(frozen=True)
class Tile:
    """One way to cut an attention.

    Args:
        queries: Of a block.
        keys: Of a block.
        warps: Of 32 threads.
        stages: How many blocks of keys are loaded ahead, as Triton counts them.
        registers: That a thread may have; None for what Triton finds.
        conditions: When it is the fastest.
        architectures: Those that it is for; None for all.
        is_optional: Whether a later one does where it is missing.
        is_whole: Whether it takes whole blocks only: what sees to the last one takes registers.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None
    conditions: tuple[Condition, ...] = ()
    architectures: tuple[int, ...] | None = None
    is_optional: bool = False
    is_whole: bool = False

    def divides(self, queries: Extent, keys: Extent) -> bool:
        """Say whether sizes that are known are whole blocks."""
        return not ((queries.static or 0) % self.queries or (keys.static or 0) % self.keys)


@dataclass(frozen=True)
class _Class:
    """The tiles for heads up to a width.

    Args:
        width: The most.
        plain: Without a mask, or with one of keys.
        causal: With causality.
        masked: With a mask for each query.
        many: For many rows without causality or a mask; None where `plain` is.
    """

    width: int
    plain: Tile
    causal: Tile
    masked: Tile
    many: Tile | None = None


_CLASSES = (
    _Class(32, Tile(64, 128, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 128, 4, 2)),
    _Class(64, Tile(64, 128, 4, 2), Tile(64, 128, 4, 2, 168), Tile(64, 64, 4, 3)),
    _Class(96, Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    _Class(128, Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 4, 2)),
    _Class(256, Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 2)),
)
#: What any GPU has the shared memory for.
_SMALL = {32: Tile(64, 64, 4, 2), 64: Tile(64, 64, 4, 2), 96: Tile(64, 64, 4, 2),
          128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 4, 2)}  # fmt: skip


def tiles_of(form: AttentionForm) -> tuple[Tile, ...]:
    """Return the cuts worth having, the last one for everything and any GPU."""
    width = max(form.q.width, form.v.width)
    found = next(one for one in _CLASSES if width <= one.width)
    tile = found.plain
    if form.causal is not None:
        tile = found.causal
    elif form.mask is not None and form.mask.by_row:
        tile = found.masked
    first = replace(tile, architectures=_MEASURED, is_optional=True)
    last = _SMALL[found.width]
    rows = form.q.length * form.q.batch * Extent(form.q.heads)
    if found.many is None or form.causal is not None or form.mask is not None:
        return (first, last)
    many = replace(found.many, architectures=_MEASURED, is_optional=True, is_whole=True)
    if not many.divides(form.q.length, form.k.length):
        return (first, last)
    if rows.static is not None:
        return (many, first, last) if rows.static > _MANY_ROWS else (first, last)
    few = replace(first, conditions=(Condition(rows, at_most=_MANY_ROWS),), is_whole=True)
    return (few, many, first, last)

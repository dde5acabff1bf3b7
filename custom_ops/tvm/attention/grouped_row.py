"""One new row of GroupQueryAttention: the heads that share keys, each by itself.

A score is a sum over the lanes of a vector, so lanes are columns of a key. With queries in lanes
most would have no work. Sixteen keys are summed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import exp_nonpositive
from ortkit.kernels.tvm.emit import NEAREST

from ..tile.gemm_tile import accumulators, each_register, multiply_add
from ..tile.registers import VECTOR, Tile
from .grouped_block import GroupedOperandLayout
from .operand_layout import LOWEST
from .tiles import Tiling, fill, sums_of, vector_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

#: Heads that share keys, at most; more fill enough lanes of a block.
MOST_SHARED = 8
# Keys of a block, and rows of a tile of results.
_KEYS, _ROWS = 512, 4
# Vectors of a tile at most, of registers that hold 16 numbers and of those that hold 8.
_WIDE, _NARROW = 24, 6
# How many keys ahead keys and values are asked for.
_AHEAD = 16


@dataclass
class OneRow:
    """The emission of the one new row of a unit.

    Args:
        layout: Where the operands lie.
        tiles: Of the processor level.
    """

    layout: GroupedOperandLayout
    tiles: Tiling
    _queries: Buffer = field(init=False)  # [head, width], scaled
    _scores: Buffer = field(init=False)  # [head, key], and then their exponentials
    _sums: Buffer = field(init=False)  # [head, width]: of values
    _largest: Buffer = field(init=False)  # [head]: of the scores before a block
    _larger: Buffer = field(init=False)  # [head, lane]: of a block's scores
    _total: Buffer = field(init=False)  # [head, lane]: of exponentials

    def __post_init__(self) -> None:
        e, share, width = self.e, self._share, self._width
        self._queries, self._sums = e.scratch(share * width), e.scratch(share * width)
        self._scores, self._largest = e.scratch(share * _KEYS), e.scratch(share)
        self._larger, self._total = e.scratch(share * VECTOR), e.scratch(share * VECTOR)

    @property
    def e(self) -> TileEmitter:
        """Where it is emitted."""
        return self.layout.e

    @property
    def _share(self) -> int:
        return self.layout.of.share

    @property
    def _width(self) -> int:
        return self.layout.form.q.width

    @property
    def _asks(self) -> bool:
        """Whether later keys and values are asked for.

        One head reads as fast as memory is: what the processor itself reads ahead is then enough,
        and more is slower (2.36 instead of 2.10 ms for 2,048 keys of 32 x 96; Zen 4, 2026-11-28).
        """
        return self._share > 1

    def emit(self) -> None:
        """Emit the row."""
        e, unit = self.e, self.layout.unit
        fill(e, self._sums, self._share * self._width, 0.0)
        fill(e, self._total, self._share * VECTOR, 0.0)
        with e.loop(e.i64(self._share)) as head:
            self._pack(head)
        last = self.layout.last_key(unit.first)
        begin = e.share(e.minimum(self.layout.first_key(unit.first), last + e.i64(1)))
        keys = e.share(last + e.i64(1) - begin)
        with e.loop(e.share(e.divide_up(keys, _KEYS))) as number:
            first = e.share(begin + number * e.i64(_KEYS))
            count = e.share(e.minimum(e.i64(_KEYS), last + e.i64(1) - first))
            fill(e, self._larger, self._share * VECTOR, LOWEST)
            self._score(first, count, last)
            with e.loop(e.i64(self._share)) as head:
                self._exponentiate(head, count)
            self._add_values(first, count)
        with e.loop(e.i64(self._share)) as head:
            self._write(head)

    def _pack(self, head: Expr) -> None:
        e, at = self.e, self.e.share(head * self.e.i64(self._width))
        self.layout.rotate_query(self.layout.unit.first, head, (self._queries, at))
        with e.each_vector(e.i64(self._width // VECTOR), at) as (column, lane):
            value = self._queries[column + lane] * e.f32(self.layout.form.scale)
            e.store(self._queries, value, column + lane)
        e.store(self._largest, e.f32(LOWEST), head)

    # ---- scores
    def _score(self, first: Expr, count: Expr, last: Expr) -> None:
        """Emit the scores of a block of keys, sixteen at a time; what is not there is hidden."""
        e, k = self.e, self.layout.form.k
        base = self.layout.base(k, self.layout.kv_head())
        with e.loop(e.share(e.divide_up(count, VECTOR))) as number:
            tile = e.share(number * e.i64(VECTOR))
            key = e.share(first + tile)
            start = e.share(base + key * e.i64(k.pitch))
            later = e.share(start + e.i64(_AHEAD * k.pitch))
            with e.block() as whole:
                rows = [start + e.i64(row * k.pitch) for row in range(VECTOR)]
                self._score_tile(rows, (tile, later), None)
            with e.block() as part:
                numbers = [e.minimum(key + e.i64(row), last) for row in range(VECTOR)]
                rows = [e.share(base + each * e.i64(k.pitch)) for each in numbers]
                self._score_tile(rows, (tile, later), e.share(count - tile))
            e.branch(count - tile >= e.i64(VECTOR), whole, part)

    def _score_tile(self, rows: Sequence[Expr], at: tuple[Expr, Expr], count: Expr | None) -> None:
        """Emit sixteen scores of each head.

        Args:
            rows: Where the keys begin.
            at: The first of the keys in the block, and where the keys begin that are asked for.
            count: How many keys there are; None for all.
        """
        e, group, (tile, later) = self.e, VECTOR if self.tiles.vectors > 1 else 4, at
        with e.loop(e.i64(self._share)) as head:
            totals = []
            for first in range(0, VECTOR, group):
                turn = e.share(head * e.i64(VECTOR // group) + e.i64(first // group))
                totals += self._products(rows[first : first + group], head, (later, turn))
            sums = sums_of(e, totals)
            at = e.share(head * e.i64(_KEYS) + tile)
            lanes = e.share(head * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                score = sums[lane]
                if count is not None:
                    is_present = e.cast(lane, "int32") < e.cast(count, "int32")
                    score = e.share(e.select(is_present, score, e.f32(float("-inf"))))
                e.store(self._scores, score, at + lane)
                so_far = self._larger[lanes + lane]
                # A NaN is not larger; it comes out of the exponentials.
                e.store(self._larger, e.select(score > so_far, score, so_far), lanes + lane)

    def _products(
        self, rows: Sequence[Expr], head: Expr, ahead: tuple[Expr, Expr]
    ) -> list[Buffer]:
        """Return for each key a vector whose numbers add up to its score.

        Each step asks for a part of sixteen later keys. Asked for at once they would keep a core
        waiting that can multiply meanwhile. 1,024 keys of 8 x 64 numbers that four heads share
        take 0.146 ms so, and took 0.193. Where no heads share keys see `_asks`.

        Args:
            rows: Where the keys begin.
            head: Of queries.
            ahead: Where the later keys begin, and which of the calls for sixteen keys this is.
        """
        e, keys = self.e, self.layout.buffers[self.layout.form.k.tensor]
        (later, turn), parts = ahead, self._width // VECTOR
        lines = -(-len(rows) // self._share)
        totals = [e.scratch() for _ in rows]
        for total in totals:
            with e.vector(VECTOR) as lane:
                e.store(total, e.f32(0.0), lane)
        with e.loop(e.i64(parts)) as part:
            column = e.share(part * e.i64(VECTOR))
            at = e.share(head * e.i64(self._width) + column)
            query = vector_of(e, lambda lane: self._queries[at + lane])
            line = e.share(later + (turn * e.i64(parts) + part) * e.i64(lines * VECTOR))
            for number in range(lines if self._asks else 0):
                e.prefetch(keys, line + e.i64(number * VECTOR), NEAREST)
            for total, row in zip(totals, rows, strict=True):
                with e.vector(VECTOR) as lane:
                    product = keys[row + column + lane] * query[lane]
                    e.store(total, total[lane] + product, lane)
        return totals

    def _exponentiate(self, head: Expr, count: Expr) -> None:
        """Turn scores into exponentials, below the largest so far, to which sums are scaled."""
        e, width = self.e, self._width
        lanes, scores = e.share(head * e.i64(VECTOR)), e.share(head * e.i64(_KEYS))
        before = e.share(self._largest[head])
        with e.loop(e.i64(VECTOR)) as lane:
            value = e.share(self._larger[lanes + lane])
            so_far = e.share(self._largest[head])
            e.store(self._largest, e.select(value > so_far, value, so_far), head)
        largest = self.layout.capped(e.share(self._largest[head]))
        factor = exp_nonpositive(e, e.share(self.layout.capped(before) - largest))
        with e.vector(VECTOR) as lane:
            e.store(self._total, self._total[lanes + lane] * factor, lanes + lane)
        with e.loop(e.share(e.divide_up(count, VECTOR))) as number:
            at = e.share(scores + number * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                score = self.layout.capped(self._scores[at + lane])
                power = exp_nonpositive(e, e.share(score - largest))
                e.store(self._scores, power, at + lane)
                e.store(self._total, self._total[lanes + lane] + power, lanes + lane)
        with e.each_vector(e.i64(width // VECTOR), head * e.i64(width)) as (at, lane):
            e.store(self._sums, self._sums[at + lane] * factor, at + lane)

    # ---- values
    def _add_values(self, first: Expr, count: Expr) -> None:
        e, v = self.e, self.layout.form.v
        start = e.share(self.layout.base(v, self.layout.kv_head()) + first * e.i64(v.pitch))
        rows, vectors = min(_ROWS, self._share), self._width // VECTOR
        most = max(1, (_WIDE if self.tiles.vectors > 1 else _NARROW) // rows)
        # As few passes over the values as can be, of equal width.
        columns = -(-vectors // -(-vectors // most))
        for top in range(0, self._share, rows):
            height = min(rows, self._share - top)
            for part in range(0, vectors, columns):
                tile = Tile(height, min(columns, vectors - part))
                self._add_tile(tile, top, part * VECTOR, start, count)

    def _add_tile(self, tile: Tile, top: int, column: int, start: Expr, count: Expr) -> None:
        e, v = self.e, self.layout.form.v
        values = self.layout.buffers[v.tensor]
        zeros = vector_of(e, lambda _: e.f32(0.0))
        none = e.scratch(tile.vectors * VECTOR)
        for vector in range(tile.vectors):
            with e.vector(VECTOR) as lane:
                e.store(none, zeros[lane], e.i64(vector * VECTOR) + lane)
        registers = accumulators(e, tile, none)
        with e.loop(count) as key:
            at = e.share(start + key * e.i64(v.pitch) + e.i64(column))
            for vector in range(tile.vectors if self._asks and not top else 0):
                later = at + e.i64(_AHEAD * v.pitch + vector * VECTOR)
                e.prefetch(values, later, NEAREST)
            multiply_add(
                e,
                registers,
                lambda row: e.share(self._scores[e.i64((top + row) * _KEYS) + key]),
                lambda vector, lane: values[at + e.i64(vector * VECTOR) + lane],
            )
        for row, vector, register, lane in each_register(e, registers):
            offset = e.i64((top + row) * self._width + column + vector * VECTOR)
            e.store(self._sums, self._sums[offset + lane] + register[lane], offset + lane)

    def _write(self, head: Expr) -> None:
        """Write the sums over their total."""
        e, width = self.e, self._width
        total = e.share(self._total[head * e.i64(VECTOR)])
        whole, at = e.variable("float32")
        e.store(whole, total, at)
        with e.loop(e.i64(VECTOR - 1)) as lane:
            value = self._total[head * e.i64(VECTOR) + lane + e.i64(1)]
            e.store(whole, whole[at] + value, at)
        factor = e.share(e.f32(1.0) / whole[at])
        if self.layout.of.window:
            row = self.layout.unit.first
            sees = self.layout.first_key(row) <= self.layout.last_key(row)
            factor = e.share(e.select(sees, factor, e.f32(0.0)))
        to = self.layout.result_at(self.layout.unit.first, head)
        output = self.layout.buffers[self.layout.form.result.tensor]
        with e.each_vector(e.i64(width // VECTOR)) as (column, lane):
            value = self._sums[head * e.i64(width) + column + lane] * factor
            e.store(output, value, to + column + lane)

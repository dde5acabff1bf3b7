"""One block of queries of one head: what `attention` runs for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import exp_nonpositive

from ...forms.attention_cpu import AttentionForm
from ..tile.emitter import TileEmitter
from ..tile.gemm_tile import accumulators, each_register, multiply_add
from ..tile.registers import VECTOR, Tile
from .operand_layout import LOWEST, OperandLayout
from .tiles import Tiling, fill, turn, vector_of

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


@dataclass
class Block:
    """The emission of one block.

    Args:
        layout: Which queries.
        tiles: How it is cut.
    """

    layout: OperandLayout
    tiles: Tiling
    _queries: Buffer = field(init=False)  # [width, lane], scaled
    _lift: Buffer = field(init=False)  # [lane]: what the bias of K adds to all scores
    _scores: Buffer = field(init=False)  # [key, lane], and then their exponentials
    _sums: Buffer = field(init=False)  # [lane, width]: of values
    _largest: Buffer = field(init=False)  # [lane]: of the scores before a block
    _larger: Buffer = field(init=False)  # [lane]: of those and the block's
    _total: Buffer = field(init=False)  # [lane]: of exponentials
    _factor: Buffer = field(init=False)  # [lane]: of sums

    def __post_init__(self) -> None:
        e, lanes = self.e, self.layout.lanes
        self._queries = e.scratch(self.form.q.width * lanes)
        self._scores = e.scratch(self.tiles.keys * lanes)
        self._sums = e.scratch(lanes * self.form.v.width)
        self._lift, self._largest = e.scratch(lanes), e.scratch(lanes)
        self._larger, self._total = e.scratch(lanes), e.scratch(lanes)
        self._factor = e.scratch(lanes)

    @property
    def e(self) -> TileEmitter:
        """Where it is emitted."""
        return self.layout.e

    @property
    def form(self) -> AttentionForm:
        """What is computed."""
        return self.layout.form

    @property
    def _zero(self) -> Expr:
        """A value of 0, as no block starts below it, which LLVM does not know."""
        return self.e.share(self.e.minimum(self.layout.start, self.e.i64(0)))

    def emit(self) -> None:
        """Emit the block."""
        e, lanes = self.e, self.layout.lanes
        self._pack_queries()
        self._find_lift()
        fill(e, self._largest, lanes, LOWEST)
        fill(e, self._larger, lanes, LOWEST)
        fill(e, self._total, lanes, 0.0)
        fill(e, self._sums, lanes * self.form.v.width, 0.0)
        begin, keys = self._keys_here()
        with e.loop(e.share(e.divide_up(keys - begin, self.tiles.keys))) as number:
            first = e.share(begin + number * e.i64(self.tiles.keys))
            count = e.share(e.minimum(e.i64(self.tiles.keys), keys - first))
            self._score(first, count)
            if self.form.mask is not None:
                self._add_mask(first, count)
            self._exponentiate(count)
            with e.block() as rescale:
                self._rescale()
            e.when(first > begin, rescale)
            self._add_values(first, count)
        self._write()

    def _keys_here(self) -> tuple[Expr, Expr]:
        """Return the first key that any query sees, and the one after the last."""
        e = self.e
        keys = e.share(e.extent(self.form.k.length))
        if self.form.is_causal:
            keys = e.share(e.minimum(keys, self.layout.start + e.i64(self.layout.lanes)))
        return e.i64(0), keys

    # ---- queries
    def _pack_queries(self) -> None:
        e = self.e
        with e.loop(e.i64(self.layout.vectors)) as vector:
            lane = e.share(vector * e.i64(VECTOR))
            with e.loop(e.i64(self.form.q.width // VECTOR)) as part:
                self._pack_part(lane, e.share(part * e.i64(VECTOR)))

    def _pack_part(self, first: Expr, column: Expr) -> None:
        e, layout, q = self.e, self.layout, self.form.q
        base, bias = layout.base(q, layout.head), layout.bias(q, layout.head)

        def load(number: Expr, lane: Expr) -> Expr:
            row = layout.number(first + number) * e.i64(q.pitch)
            value = layout.buffers[q.tensor][base + row + column + lane]
            value = value if bias is None else value + bias(column + lane)
            return value * e.f32(self.form.scale)

        def keep(number: Expr, transposed: Buffer) -> None:
            at = e.share((column + number) * e.i64(layout.lanes) + first)
            with e.vector(VECTOR) as lane:
                e.store(self._queries, transposed[lane], at + lane)

        turn(e, load, keep, self._zero)

    def _find_lift(self) -> None:
        e, lanes = self.e, self.layout.lanes
        bias = self.layout.bias(self.form.k, self.layout.kv_head())
        fill(e, self._lift, lanes, 0.0)
        if bias is None:
            return
        with e.loop(e.i64(self.form.k.width)) as column:
            factor = e.share(bias(column))
            for start in range(0, lanes, VECTOR):
                with e.vector(VECTOR) as lane:
                    at = e.i64(start) + lane
                    term = factor * self._queries[column * e.i64(lanes) + at]
                    e.store(self._lift, self._lift[at] + term, at)

    # ---- scores
    def _score(self, first: Expr, count: Expr) -> None:
        """Write the scores of a block of keys, in tiles; the last one may repeat its last key."""
        e, k, rows = self.e, self.form.k, self.tiles.key_rows
        base = self.layout.base(k, self.layout.kv_head())
        last = e.share(e.extent(k.length) - e.i64(1))
        with e.loop(e.share(e.divide_up(count, rows))) as number:
            tile = e.share(number * e.i64(rows))
            keys = [e.minimum(first + tile + e.i64(row), last) for row in range(rows)]
            starts = [e.share(base + key * e.i64(k.pitch)) for key in keys]
            registers = accumulators(e, Tile(rows, self.layout.vectors), self._lift)
            with e.loop(e.i64(k.width)) as column:
                queries = e.share(column * e.i64(self.layout.lanes))
                multiply_add(
                    e, registers,
                    lambda row: e.share(self.layout.buffers[k.tensor][starts[row] + column]),
                    lambda vector, lane: self._queries[queries + e.i64(vector * VECTOR) + lane],
                )  # fmt: skip
            self._keep_scores(registers, tile, e.share(first + tile))

    def _keep_scores(self, registers: list[list[Buffer]], tile: Expr, key: Expr) -> None:
        if not self.form.is_causal:
            self._store_scores(registers, tile, None)
            return
        e = self.e
        with e.block() as edge:
            self._store_scores(registers, tile, key)
        with e.block() as inside:
            self._store_scores(registers, tile, None)
        e.branch(self._hides_any(key, len(registers)), edge, inside)

    def _hides_any(self, key: Expr, count: int) -> Expr:
        """Return whether some query does not see all of some keys."""
        return key + self.e.i64(count - 1) > self.layout.start

    def _is_seen(self, key: Expr, lane: Expr) -> Expr:
        """Return whether the query of a lane sees a key."""
        return key <= self.layout.start + lane

    def _store_scores(self, registers: list[list[Buffer]], tile: Expr, key: Expr | None) -> None:
        """Write a tile; of queries before a key, minus infinity. Without a mask, with maxima."""
        e = self.e
        for row, vectors in enumerate(registers):
            for vector, register in enumerate(vectors):
                column = e.i64(vector * VECTOR)
                at = e.share((tile + e.i64(row)) * e.i64(self.layout.lanes) + column)
                with e.vector(VECTOR) as lane:
                    score = register[lane]
                    if key is not None:
                        is_seen = self._is_seen(key + e.i64(row), column + lane)
                        score = e.share(e.select(is_seen, score, e.f32(float("-inf"))))
                    e.store(self._scores, score, at + lane)
                    if self.form.mask is None:
                        self._keep_larger(score, column + lane)

    def _keep_larger(self, score: Expr, lane: Expr) -> None:
        # A NaN is not larger; it comes out of the exponentials.
        e, so_far = self.e, self._larger[lane]
        e.store(self._larger, e.select(score > so_far, score, so_far), lane)

    def _add_mask(self, first: Expr, count: Expr) -> None:
        """Add the mask to a block of scores, and keep their maxima."""
        e, layout = self.e, self.layout
        base, keys = layout.base_of_mask(), e.extent(self.form.k.length)
        with e.loop(e.i64(layout.vectors)) as vector:
            lane = e.share(vector * e.i64(VECTOR))

            def row(number: Expr) -> Expr:
                return base + layout.number(lane + number) * keys + first

            whole = e.share(e.divide_down(count, VECTOR))
            with e.loop(whole) as part:
                self._add_mask_part(lane, row, e.share(part * e.i64(VECTOR)))
            with e.loop(e.share(count - whole * e.i64(VECTOR))) as left:
                key, added = e.share(whole * e.i64(VECTOR) + left), e.scratch()
                with e.loop(e.i64(VECTOR)) as number:
                    e.store(added, layout.mask_at(row(number) + key), number)
                self._add_to_scores(key, lane, added)

    def _add_mask_part(self, first: Expr, row: Callable[[Expr], Expr], key: Expr) -> None:
        def load(number: Expr, lane: Expr) -> Expr:
            return self.layout.mask_at(row(number) + key + lane)

        def keep(number: Expr, added: Buffer) -> None:
            self._add_to_scores(self.e.share(key + number), first, added)

        turn(self.e, load, keep, self._zero)

    def _add_to_scores(self, key: Expr, first: Expr, added: Buffer) -> None:
        e = self.e
        at = e.share(key * e.i64(self.layout.lanes) + first)
        with e.vector(VECTOR) as lane:
            score = e.share(self._scores[at + lane] + added[lane])
            e.store(self._scores, score, at + lane)
            self._keep_larger(score, first + lane)

    # ---- softmax
    def _exponentiate(self, count: Expr) -> None:
        """Write exponentials for a block of scores, and how much smaller those before become."""
        e = self.e
        totals, largest = [e.scratch() for _ in range(self.layout.vectors)], []
        for vector, total in enumerate(totals):
            column = e.i64(vector * VECTOR)
            with e.vector(VECTOR) as lane:
                at = column + lane
                before, now = self._capped(self._largest[at]), self._capped(self._larger[at])
                factor = exp_nonpositive(e, e.share(before - now))
                e.store(self._factor, factor, at)
                e.store(total, e.f32(0.0), lane)
                e.store(self._largest, self._larger[at], at)
            largest.append(self._largest_of(column))
        with e.loop(count) as key:
            for vector, total in enumerate(totals):
                at = e.share(key * e.i64(self.layout.lanes) + e.i64(vector * VECTOR))
                with e.vector(VECTOR) as lane:
                    score = self._capped(self._scores[at + lane])
                    power = exp_nonpositive(e, e.share(score - largest[vector][lane]))
                    e.store(self._scores, power, at + lane)
                    e.store(total, total[lane] + power, lane)
        for vector, total in enumerate(totals):
            with e.vector(VECTOR) as lane:
                at = e.i64(vector * VECTOR) + lane
                e.store(self._total, self._total[at] * self._factor[at] + total[lane], at)

    def _largest_of(self, at: Expr) -> Buffer:
        return vector_of(self.e, lambda lane: self._capped(self._larger[at + lane]))

    def _capped(self, score: Expr) -> Expr:
        """Return what the exponential of a score is taken of; it never falls as scores rise."""
        return score

    def _rescale(self) -> None:
        e, width = self.e, self.form.v.width
        with e.loop(e.i64(self.layout.lanes)) as row:
            factor = e.share(self._factor[row])
            with e.each_vector(e.i64(width // VECTOR), row * e.i64(width)) as (at, lane):
                e.store(self._sums, self._sums[at + lane] * factor, at + lane)

    # ---- values
    def _add_values(self, first: Expr, count: Expr) -> None:
        """Add a block of values times their exponentials, in tiles of queries and columns.

        Each block has sums of its own: with one sum for 1,500 keys, positive values were off by 26
        epsilons (2026-11).
        """
        e, v, rows = self.e, self.form.v, self.tiles.query_rows
        start = e.share(self.layout.base(v, self.layout.kv_head()) + first * e.i64(v.pitch))
        with e.loop(e.share(e.divide_up(self.layout.queries_here(), rows))) as number:
            row = e.share(number * e.i64(rows))
            for part in range(0, v.width // VECTOR, self.tiles.columns):
                vectors = min(self.tiles.columns, v.width // VECTOR - part)
                self._add_tile(Tile(rows, vectors), row, part * VECTOR, start, count)

    def _add_tile(self, tile: Tile, row: Expr, column: int, start: Expr, count: Expr) -> None:
        e, v = self.e, self.form.v
        registers = [[e.scratch() for _ in range(tile.vectors)] for _ in range(tile.rows)]
        offsets = [
            [
                e.share((row + e.i64(number)) * e.i64(v.width) + e.i64(column + vector * VECTOR))
                for vector in range(tile.vectors)
            ]
            for number in range(tile.rows)
        ]
        for _, _, register, lane in each_register(e, registers):
            e.store(register, e.f32(0.0), lane)
        with e.loop(count) as key:
            values = e.share(start + key * e.i64(v.pitch) + e.i64(column))
            powers = e.share(key * e.i64(self.layout.lanes) + row)
            multiply_add(
                e,
                registers,
                lambda number: e.share(self._scores[powers + e.i64(number)]),
                lambda vector, lane: self.layout.buffers[v.tensor][
                    values + e.i64(vector * VECTOR) + lane
                ],
            )
        for number, vector, register, lane in each_register(e, registers):
            offset = offsets[number][vector]
            e.store(self._sums, self._sums[offset + lane] + register[lane], offset + lane)

    def _write(self) -> None:
        """Write the sums over their totals; zeros for a query none of whose scores counts."""
        e, v = self.e, self.form.v
        output = self.layout.buffers[self.form.result.tensor]
        bias = self.layout.bias(v, self.layout.kv_head())
        for vector in range(self.layout.vectors):
            with e.vector(VECTOR) as lane:
                at = e.i64(vector * VECTOR) + lane
                counts = self._largest[at] > e.f32(LOWEST)
                factor = e.select(counts, e.f32(1.0) / self._total[at], e.f32(0.0))
                e.store(self._factor, factor, at)
                e.store(self._lift, e.select(counts, e.f32(1.0), e.f32(0.0)), at)
        sink = self.layout.base(self.form.result, self.layout.head)
        with e.loop(self.layout.queries_here()) as row:
            factor, counted = e.share(self._factor[row]), e.share(self._lift[row])
            to = e.share(sink + (self.layout.start + row) * e.i64(self.form.result.pitch))
            with e.each_vector(e.i64(v.width // VECTOR)) as (column, lane):
                value = self._sums[row * e.i64(v.width) + column + lane] * factor
                if bias is not None:
                    value = value + counted * bias(column + lane)
                e.store(output, value, to + column + lane)

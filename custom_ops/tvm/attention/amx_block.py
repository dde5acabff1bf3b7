"""One group of queries of one head in tiles: what `attention_amx` runs for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...forms.attention_cpu import AttentionForm, Heads
from ..gemm.bf16_emitter import PAIRS, TILE
from ..tile.registers import VECTOR
from .amx_emitter import RowEmitter
from .amx_softmax import Rows, Scores
from .operand_layout import LOWEST, OperandLayout
from .tiles import fill, turn

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# Between rows that tiles read or write: without it rows of a power of two would share sets of
# the cache.
_GAP = PAIRS
# Tiles: sums (row, column) 0 to 3, then two of the left operand, then two of the right one.
_A, _B = 4, 6
_TILE_ELEMENTS = TILE * TILE


@dataclass
class GroupWriter:
    """The emission of one group.

    Args:
        e: The emitter that writes the statements.
        form: What is computed.
        buffers: The region's tensors.
        keys: Of a block, a multiple of 32.
        depth: The width of Q and K, a multiple of 32: what they lack is zero.
        group: Queries of a group, a multiple of 32.
    """

    e: RowEmitter
    form: AttentionForm
    buffers: list[Buffer]
    keys: int
    depth: int
    group: int
    _queries: tuple[Buffer, Expr] = field(init=False)  # bfloat16 [query, depth]
    _packed_keys: tuple[Buffer, Expr] = field(init=False)  # pairs [16 keys, depth / 2, key]
    _packed_values: tuple[Buffer, Expr] = field(init=False)  # [16 columns, keys / 2, column, 2]
    _scores: tuple[Buffer, Expr] = field(init=False)  # float32 [query of 32, key]
    _weights: tuple[Buffer, Expr] = field(init=False)  # bfloat16 [query of 32, key]
    _sums: tuple[Buffer, Expr] = field(init=False)  # float32 [query, column]
    _stage: Buffer = field(init=False)  # 16 rows of pairs, to be transposed
    _largest: Buffer = field(init=False)  # [query]: of the scores so far
    _total: Buffer = field(init=False)  # [query, 16]: of exponentials

    def __post_init__(self) -> None:
        e = self.e
        self._queries = e.aligned(self.group * self.depth, "uint16")
        self._packed_keys = e.aligned(self.keys * self.depth // 2, "float32")
        self._packed_values = e.aligned(self.keys * self.form.v.width, "uint16")
        self._scores = e.aligned(PAIRS * self._pitch, "float32")
        self._weights = e.aligned(PAIRS * self._pitch, "uint16")
        self._sums = e.aligned(self.group * self.form.v.width, "float32")
        self._stage = e.scratch(_TILE_ELEMENTS)
        self._largest = e.scratch(self.group)
        self._total = e.scratch(self.group * VECTOR)

    @property
    def _pitch(self) -> int:
        """Between rows of scores, in elements."""
        return self.keys + _GAP

    def emit(self, batch: Expr, head: Expr, start: Expr) -> None:
        """Emit a group whose first query is `start`."""
        e = self.e
        layout = OperandLayout(e, self.form, self.buffers, PAIRS // VECTOR, batch, head, start)
        count = e.share(e.minimum(e.extent(self.form.q.length) - start, e.i64(self.group)))
        self._copy_queries(layout, count)
        fill(e, self._largest, self.group, LOWEST)
        fill(e, self._total, self.group * VECTOR, 0.0)
        count_of_vectors = e.i64(self.group * self.form.v.width // VECTOR)
        with e.loop(count_of_vectors) as number, e.vector(VECTOR) as lane:
            e.store(self._sums[0], e.f32(0.0), self._sums[1] + number * e.i64(VECTOR) + lane)
        keys = e.extent(self.form.k.length)
        if self.form.is_causal:
            keys = e.minimum(keys, start + count)
        keys, base = e.share(keys), self._base_of_mask(layout)
        with e.loop(e.share(e.divide_up(keys, self.keys))) as number:
            first = e.share(number * e.i64(self.keys))
            here = e.share(e.minimum(e.i64(self.keys), keys - first))
            self._pack_keys(layout, first, here)
            self._pack_values(layout, first, here)
            with e.loop(e.share(e.divide_up(count, PAIRS))) as part:
                row = e.share(part * e.i64(PAIRS))
                self._part(Scores(layout, first, here, row, count, base))
        rows = Rows(e, self.form, self.buffers, self._pitch)
        rows.write(layout, count, self._sums, self._largest, self._total)

    def _base_of_mask(self, layout: OperandLayout) -> Expr | None:
        return None if self.form.mask is None else layout.base_of_mask()

    # ---- packing
    def _copy_queries(self, layout: OperandLayout, count: Expr) -> None:
        e, q, (sink, origin) = self.e, self.form.q, self._queries
        begin = e.share(layout.base(q, layout.head) + layout.start * e.i64(q.pitch))
        with e.loop(count) as row:
            source = e.share(begin + row * e.i64(q.pitch))
            to = e.share(origin + row * e.i64(self.depth))
            for column in range(0, q.width, PAIRS):
                at = e.i64(column)
                pairs = self._pairs(q, source + at, min(PAIRS, q.width - column))
                e.put(sink, to + at, pairs, PAIRS)

    def _pairs(self, heads: Heads, at: Expr, count: int) -> Expr:
        return self.e.pairs_of(self.buffers[heads.tensor], at, count)

    def _row_of(self, layout: OperandLayout, heads: Heads, last: Expr, key: Expr) -> Expr:
        """Return the element that a key's row begins at; of those after the last one, its."""
        e = self.e
        base = layout.base(heads, layout.kv_head())
        return e.share(base + e.minimum(key, last) * e.i64(heads.pitch))

    def _pack_keys(self, layout: OperandLayout, first: Expr, count: Expr) -> None:
        """Transpose blocks of 16 keys by 16 pairs. Keys after the last one repeat it."""
        e, k, (sink, origin) = self.e, self.form.k, self._packed_keys
        last, zero = e.share(first + count - e.i64(1)), e.share(e.minimum(first, e.i64(0)))
        with e.loop(e.share(e.divide_up(count, PAIRS) * e.i64(2))) as strip:
            top = e.share(first + strip * e.i64(TILE))
            for column in range(0, k.width, PAIRS):
                width = min(PAIRS, k.width - column)
                with e.loop(e.i64(TILE)) as row:
                    at = self._row_of(layout, k, last, top + row) + e.i64(column)
                    pairs = e.bitcast(self._pairs(k, at, width), "float32x16")
                    e.put(self._stage, row * e.i64(TILE), pairs, TILE)
                to = e.share(
                    origin + strip * e.i64(self.depth // 2 * TILE) + e.i64(column // 2 * TILE)
                )

                def load(row: Expr, lane: Expr) -> Expr:
                    return self._stage[row * e.i64(TILE) + lane]

                def keep(pair: Expr, transposed: Buffer, to: Expr = to) -> None:
                    with e.vector(VECTOR) as lane:
                        e.store(sink, transposed[lane], to + pair * e.i64(TILE) + lane)

                turn(e, load, keep, zero)

    def _pack_values(self, layout: OperandLayout, first: Expr, count: Expr) -> None:
        """Put rows of two keys side by side, column by column."""
        e, v, (sink, origin) = self.e, self.form.v, self._packed_values
        last = e.share(first + count - e.i64(1))
        with e.loop(e.share(e.divide_up(count, PAIRS) * e.i64(TILE))) as pair:
            key = e.share(first + pair * e.i64(2))
            rows = [self._row_of(layout, v, last, key + e.i64(each)) for each in range(2)]
            for column in range(0, v.width, PAIRS):
                width = min(PAIRS, v.width - column)
                low, high = (
                    e.share_row(self._pairs(v, row + e.i64(column), width), PAIRS, "uint16")
                    for row in rows
                )
                for part in range(width // TILE):
                    lanes = [
                        lane + half * PAIRS
                        for lane in range(part * TILE, (part + 1) * TILE)
                        for half in range(2)
                    ]
                    strip = e.i64((column // TILE + part) * self.keys * TILE)
                    to = e.share(origin + strip + pair * e.i64(PAIRS))
                    e.put(sink, to, e.shuffled(low, high, lanes), PAIRS)

    # ---- products
    def _part(self, scores: Scores) -> None:
        """Add what a block of keys gives 32 queries."""
        e = self.e
        rows = Rows(e, self.form, self.buffers, self._pitch)
        keys = rows.keys_of_part(scores)
        with e.block() as seen:
            steps = e.share(e.divide_up(keys, PAIRS))
            self._score(scores, steps)
            rows.weigh(
                scores, steps, self._scores, self._weights, self._sums, self._largest, self._total
            )
            self._add_values(scores, steps)
        e.when(keys > e.i64(0), seen)

    def _score(self, scores: Scores, steps: Expr) -> None:
        e, (left, begin), (right, origin) = self.e, self._queries, self._packed_keys
        top = e.share(begin + scores.row * e.i64(self.depth))
        with e.loop(steps) as step:
            panel = e.share(origin + step * e.i64(self.depth * TILE))
            for tile in range(4):
                e.clear_tile(tile)
            for part in range(self.depth // PAIRS):
                for column in range(2):
                    at = e.i64(column * self.depth // 2 * TILE + part * _TILE_ELEMENTS)
                    e.load_tile(_B + column, right, panel + at, e.i64(TILE * 4))
                for row in range(2):
                    at = e.i64(row * TILE * self.depth + part * PAIRS)
                    e.load_tile(_A + row, left, top + at, e.i64(self.depth * 2))
                    for column in range(2):
                        e.multiply_tiles(2 * row + column, _A + row, _B + column)
            self._keep(self._scores, step * e.i64(PAIRS), self._pitch, 2)

    def _add_values(self, scores: Scores, steps: Expr) -> None:
        e, (left, begin), (right, origin) = self.e, self._weights, self._packed_values
        width = self.form.v.width
        sums = self._sums[0], self._sums[1] + scores.row * e.i64(width)
        for column in range(0, width, PAIRS):
            columns = min(2, (width - column) // TILE)
            offsets = self._tiles(sums[1] + e.i64(column), width, columns)
            for tile, offset in offsets.items():
                e.load_tile(tile, sums[0], offset, e.i64(width * 4))
            with e.loop(steps) as step:
                for part in range(columns):
                    strip = e.i64((column // TILE + part) * self.keys * TILE)
                    at = e.share(origin + strip + step * e.i64(TILE * PAIRS))
                    e.load_tile(_B + part, right, at, e.i64(PAIRS * 2))
                for row in range(2):
                    at = e.share(begin + e.i64(row * TILE * self._pitch) + step * e.i64(PAIRS))
                    e.load_tile(_A + row, left, at, e.i64(self._pitch * 2))
                    for part in range(columns):
                        e.multiply_tiles(2 * row + part, _A + row, _B + part)
            self._keep(sums, e.i64(column), width, columns)

    def _tiles(self, begin: Expr, pitch: int, columns: int) -> dict[int, Expr]:
        """Return where the tiles of 32 rows lie, by their numbers."""
        e = self.e
        return {
            2 * row + column: e.share(begin + e.i64(row * TILE * pitch + column * TILE))
            for row in range(2)
            for column in range(columns)
        }

    def _keep(self, sink: tuple[Buffer, Expr], column: Expr, pitch: int, columns: int) -> None:
        """Write the tiles of sums from a column on."""
        e, (buffer, origin) = self.e, sink
        for tile, offset in self._tiles(origin + column, pitch, columns).items():
            e.store_tile(tile, buffer, offset, e.i64(pitch * 4))

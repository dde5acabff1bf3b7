"""Writes the kernel of GroupQueryAttention: the new rows of the caches, then blocks of queries."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from ortkit.kernels.sizes import extent_of

from ...forms.attention_cpu import Heads
from ...forms.attention_grouped import GroupedForm
from ..tile.emitter import TileEmitter
from ..tile.registers import VECTOR
from .grouped_block import PARTS, GroupedBlock, GroupedOperandLayout, Unit, rotate_row
from .grouped_row import MOST_SHARED, OneRow
from .tiles import Tiling, narrow

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# What a run is refused with: sizes that differ, and lengths that do not fit.
_SIZES, _LENGTHS = 1, 2


class GroupedWriter:
    """One kernel in the making."""

    def __init__(self, of: GroupedForm, symbol: str, tiles: Tiling) -> None:
        self.of, self.tiles = of, tiles
        # A cache may be written where it is read.
        self.e = e = TileEmitter(symbol, may_alias=True)
        self.buffers, self.begin, self.end = e.parameters(of.attention.signature)
        # TVM returns nothing but 0.
        self._code = e.pointer("code", "int32")

    def function(self) -> Expr:
        """Return the function that computes the units begin .. end - 1."""
        e, heads = self.e, self.of.attention.k.heads
        length = e.share(e.extent(self.of.attention.q.length))
        self._refuse_sizes()
        with e.loop(self.end - self.begin) as index:
            number = e.share(self.begin + index)
            head = e.share(e.divide_down(number, PARTS))
            part = e.share(number - head * e.i64(PARTS))
            batch = e.share(e.divide_down(head, heads))
            first = e.share(e.divide_down(part * length, PARTS))
            end = e.share(e.divide_down((part + e.i64(1)) * length, PARTS))
            past, seen = self._lengths(batch, length)
            unit = Unit(batch, e.share(head - batch * e.i64(heads)), first, end, past, seen)
            with e.block() as some:
                self._copy_caches(unit, length)
                self._add_rows(unit)
                self._attend(unit)
            # The last part makes a cache whole where there are no new rows.
            is_last = e.equal(part, e.i64(PARTS - 1))
            e.when(e.either(end > first, is_last), some)
        return e.function()

    # ---- what does not fit
    def _refuse_sizes(self) -> None:
        e, of = self.e, self.of
        spec = of.attention.signature.inputs[of.past[0]]
        keys, values = (e.extent(each.length) for each in (of.attention.k, of.attention.v))
        differ = e.not_equal(keys, values)
        if not isinstance(spec.shape[3], int):
            width = e.extent(extent_of(spec.shape[3]))
            differ = e.either(differ, e.not_equal(width, e.i64(of.k.width)))
        self._refuse(differ, _SIZES)

    def _refuse(self, condition: Expr, code: int) -> None:
        """Emit the end of the function on a condition."""
        e = self.e
        with e.block() as end:
            e.store(self._code, e.i32(code), e.i64(0))
            end.append(e.tir.Return(e.i32(0)))
        e.when(condition, end)

    def _lengths(self, batch: Expr, length: Expr) -> tuple[Expr, Expr]:
        """Return how many rows of a sample the cache has before and after.

        A prompt begins at its first row, and may be shorter than others beside it. What ONNX
        Runtime refuses is refused.
        """
        e, of = self.e, self.of
        seen = e.share(e.cast(self.buffers[of.lengths][batch], "int64") + e.i64(1))
        total = e.share(e.cast(self.buffers[of.total][e.i64(0)], "int64"))
        is_prompt = e.share(e.equal(total, length))
        past = e.share(e.select(is_prompt, e.i64(0), seen - length))
        rows = e.share(e.extent(extent_of(of.attention.signature.inputs[of.past[0]].shape[2])))
        end = e.share(past + length)
        several = e.both(e.extent(of.attention.q.batch) > e.i64(1), length > e.i64(1))
        reasons = [
            seen < e.i64(1),
            seen > total,
            past < e.i64(0),
            past > rows,
            end > e.extent(of.attention.k.length),
            e.both(total > rows, e.not_equal(total, rows + length)),
            e.both(several, e.invert(is_prompt)),
        ]
        if of.rotation is not None:
            reasons.append(end > e.extent(of.rotation.positions))
        self._refuse(reduce(e.either, reasons), _LENGTHS)
        return past, seen

    # ---- caches
    def _caches(self) -> list[tuple[int, Heads, Heads]]:
        """Return of keys and of values the cache before, the one after, and the new rows."""
        of = self.of
        return [(of.past[0], of.attention.k, of.k), (of.past[1], of.attention.v, of.v)]

    def _start(self, unit: Unit, rows: Expr, width: int) -> Expr:
        """Return where the rows of a unit's head begin in a cache."""
        e = self.e
        head = unit.batch * e.i64(self.of.attention.k.heads) + unit.group
        return e.share(head * rows * e.i64(width))

    def _copy_caches(self, unit: Unit, length: Expr) -> None:
        """Emit copies of the rows before, and zeros behind, where a cache is an output apart."""
        e, of = self.e, self.of
        before = extent_of(of.attention.signature.inputs[of.past[0]].shape[2])
        for past, present, _ in self._caches():
            source, sink = self.buffers[past], self.buffers[present.tensor]
            addresses = [
                e.tir.reinterpret("uint64", e.tir.address_of(each[e.i64(0)]))
                for each in (source, sink)
            ]
            with e.block() as branch:
                start = self._start(unit, e.share(e.extent(before)), present.width)
                rows = e.share(e.extent(present.length))
                to = self._start(unit, rows, present.width)
                vectors = e.i64(present.width // VECTOR)
                with e.each_vector(unit.past * vectors) as (at, lane):
                    e.store(sink, source[start + at + lane], to + at + lane)
                with e.block() as behind:
                    new = e.share(unit.past + length)
                    begin = to + new * e.i64(present.width)
                    with e.each_vector((rows - new) * vectors, begin) as (at, lane):
                        e.store(sink, e.f32(0.0), at + lane)
                e.when(e.equal(unit.end, length), behind)
            e.when(e.not_equal(*addresses), branch)

    def _add_rows(self, unit: Unit) -> None:
        """Emit the new rows that the unit's queries see, keys rotated."""
        e, of = self.e, self.of
        with e.loop(unit.end) as row:
            position = e.share(unit.past + row)
            for _, present, new in self._caches():
                to = self._start(unit, e.extent(present.length), present.width)
                sink = self.buffers[present.tensor], e.share(to + position * e.i64(new.width))
                source = self.buffers[new.tensor], self._row(unit, new, row, unit.group)
                rotation = of.rotation if new is of.k else None
                rotate_row(e, self.buffers, (source, sink), new.width, rotation, position)

    def _row(self, unit: Unit, heads: Heads, row: Expr, head: Expr) -> Expr:
        """Return where a new row of a head begins."""
        e = self.e
        number = unit.batch * e.extent(heads.length) + row
        column = head * e.i64(heads.width) + e.i64(heads.first)
        return e.share(number * e.i64(heads.pitch) + column)

    # ---- attention
    def _attend(self, unit: Unit) -> None:
        e = self.e
        if self.of.share > MOST_SHARED:
            self._attend_blocks(unit)
            return
        with e.block() as many:
            self._attend_blocks(unit)
        with e.block() as block:
            OneRow(self._layout(unit, 1, e.i64(0)), self.tiles).emit()
        e.branch(e.equal(unit.end - unit.first, e.i64(1)), block, many)

    def _attend_blocks(self, unit: Unit) -> None:
        e, tiles = self.e, self.tiles
        rows = e.share((unit.end - unit.first) * e.i64(self.of.share))
        with e.loop(e.share(e.divide_up(rows, tiles.queries))) as number:
            start = e.share(number * e.i64(tiles.queries))
            with e.block() as wide:
                GroupedBlock(self._layout(unit, tiles.vectors, start), tiles).emit()
            few = tiles if tiles.vectors == 1 else narrow(tiles)
            with e.block() as last:
                GroupedBlock(self._layout(unit, few.vectors, start), few).emit()
            e.branch(rows - start > e.i64(VECTOR), wide, last)

    def _layout(self, unit: Unit, vectors: int, start: Expr) -> GroupedOperandLayout:
        """Return where a block of rows is that begins at one."""
        e, of = self.e, self.of
        head = e.share(unit.group * e.i64(of.share))
        return GroupedOperandLayout(
            e, of.attention, self.buffers, vectors, unit.batch, head, start, unit, of
        )

"""A block of queries of GroupQueryAttention: heads that share keys lie in lanes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import tanh

from ...forms.attention_grouped import GroupedForm, Rotation
from ..tile.registers import VECTOR
from .fp32_block import Block
from .operand_layout import OperandLayout
from .tiles import fill

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

#: Parts that the new rows of a head of keys are cut into.
PARTS = 8
Pointer = tuple["Buffer", "Expr"]
"""A tensor and an element of it."""


@dataclass(frozen=True)
class Unit:
    """One head of keys and values, and some new rows.

    Args:
        batch: The sample.
        group: The head.
        first: The first new row.
        end: The one after the last.
        past: Rows of the cache before the new ones.
        seen: Rows of the sample in the end: of a short prompt fewer than are written.
    """

    batch: Expr
    group: Expr
    first: Expr
    end: Expr
    past: Expr
    seen: Expr


@dataclass(frozen=True)
class GroupedOperandLayout(OperandLayout):
    """A block of a unit's rows: the heads of one new row, then those of the next.

    Args:
        unit: Whose.
        of: What is computed.
    """

    unit: Unit
    of: GroupedForm

    def queries_here(self) -> Expr:
        """Return how many rows of the block there are."""
        e, left = self.e, self._rows() - self.start
        return e.share(e.minimum(e.i64(self.lanes), left))

    def row(self, lane: Expr) -> tuple[Expr, Expr]:
        """Return the new row of a lane, and which of the heads that share keys it is of.

        The last ones instead of those after them.
        """
        e, share = self.e, self.of.share
        number = e.share(e.minimum(self.start + lane, self._rows() - e.i64(1)))
        above = e.share(e.divide_down(number, share))
        return e.share(self.unit.first + above), e.share(number - above * e.i64(share))

    def last_key(self, row: Expr) -> Expr:
        """Return the last key that a new row sees."""
        e, unit = self.e, self.unit
        return e.share(e.minimum(unit.past + row, unit.seen - e.i64(1)))

    def first_key(self, row: Expr) -> Expr:
        """Return the first key that a new row sees; none of a short prompt if behind the last.

        A window ends at the row's own place, which a short prompt may not have.
        """
        e, window = self.e, self.of.window
        if not window:
            return e.i64(0)
        return e.share(e.tir.max(self.unit.past + row - e.i64(window - 1), e.i64(0)))

    def capped(self, score: Expr) -> Expr:
        """Return a score as the softcap bounds it; one that is hidden stays minus infinity."""
        e, cap = self.e, self.of.softcap
        if not cap:
            return score
        bounded = tanh(e, e.share(score * e.f32(1.0 / cap))) * e.f32(cap)
        return e.share(e.select(e.equal(score, e.f32(float("-inf"))), score, bounded))

    def rotate_query(self, row: Expr, head: Expr, sink: Pointer) -> None:
        """Emit a row of a head of Q as its position rotates it."""
        e, q = self.e, self.form.q
        start = (self.batch * e.extent(q.length) + row) * e.i64(q.pitch)
        start = e.share(start + (self.head + head) * e.i64(q.width) + e.i64(q.first))
        position = e.share(self.unit.past + row)
        source, rotation = (self.buffers[q.tensor], start), self.of.rotation
        rotate_row(e, self.buffers, (source, sink), q.width, rotation, position)

    def result_at(self, row: Expr, head: Expr) -> Expr:
        """Return where a row of a head of the result begins."""
        e, result = self.e, self.form.result
        start = (self.batch * e.extent(self.form.q.length) + row) * e.i64(result.pitch)
        return e.share(start + (self.head + head) * e.i64(result.width))

    def _rows(self) -> Expr:
        return (self.unit.end - self.unit.first) * self.e.i64(self.of.share)


@dataclass
class GroupedBlock(Block):
    """The emission of one block, over all keys of the cache that it sees."""

    layout: GroupedOperandLayout
    _last: Buffer = field(init=False)  # int32 [lane]: the last key that a query sees
    _first: Buffer = field(init=False)  # int32 [lane]: the first one
    _rotated: Buffer = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first = self.e.local(self.layout.lanes, "int32")
        self._last = self.e.local(self.layout.lanes, "int32")
        self._rotated = self.e.scratch(self.form.q.width)

    def _pack_queries(self) -> None:
        """Emit all rows, rotated and scaled, columns first."""
        e, q, layout = self.e, self.form.q, self.layout
        with e.loop(e.i64(layout.lanes)) as lane:
            row, head = layout.row(lane)
            e.store(self._last, e.cast(layout.last_key(row), "int32"), lane)
            if layout.of.window:
                e.store(self._first, e.cast(layout.first_key(row), "int32"), lane)
            layout.rotate_query(row, head, (self._rotated, e.i64(0)))
            with e.loop(e.i64(q.width)) as column:
                value = self._rotated[column] * e.f32(self.form.scale)
                e.store(self._queries, value, column * e.i64(layout.lanes) + lane)

    def _find_lift(self) -> None:
        fill(self.e, self._lift, self.layout.lanes, 0.0)

    def _capped(self, score: Expr) -> Expr:
        return self.layout.capped(score)

    # ---- which keys are seen
    def _keys_here(self) -> tuple[Expr, Expr]:
        e = self.e
        last = e.share(e.cast(self._last[e.i64(self.layout.lanes - 1)], "int64"))
        end = e.share(last + e.i64(1))
        if not self.layout.of.window:
            return e.i64(0), end
        first = e.share(e.cast(self._first[e.i64(0)], "int64"))
        return e.share(e.minimum(first, end)), end

    def _hides_any(self, key: Expr, count: int) -> Expr:
        e = self.e
        number = e.share(e.cast(key, "int32"))
        hides = number + e.i32(count - 1) > self._last[e.i64(0)]
        if self.layout.of.window:
            hides = e.either(hides, number < self._first[e.i64(self.layout.lanes - 1)])
        return hides

    def _is_seen(self, key: Expr, lane: Expr) -> Expr:
        e = self.e
        number = e.cast(key, "int32")
        seen = number <= self._last[lane]
        if self.layout.of.window:
            seen = e.both(seen, number >= self._first[lane])
        return seen

    # ---- results
    def _write(self) -> None:
        """Write the sums over their totals."""
        e, layout, result = self.e, self.layout, self.form.result
        output = layout.buffers[result.tensor]
        with e.loop(layout.queries_here()) as lane:
            row, head = layout.row(lane)
            factor = e.share(e.f32(1.0) / self._total[lane])
            if layout.of.window:
                sees = self._first[lane] <= self._last[lane]
                factor = e.share(e.select(sees, factor, e.f32(0.0)))
            to = layout.result_at(row, head)
            with e.each_vector(e.i64(result.width // VECTOR)) as (column, each):
                value = self._sums[lane * e.i64(result.width) + column + each] * factor
                e.store(output, value, to + column + each)


def rotate_row(
    e: TileEmitter,
    buffers: Sequence[Buffer],
    row: tuple[Pointer, Pointer],
    width: int,
    rotation: Rotation | None,
    position: Expr,
) -> None:
    """Emit a row of a head as its position rotates it.

    Args:
        e: The emitter that writes the statements.
        buffers: The region's tensors.
        row: Where it begins, and where to.
        width: Of the head.
        rotation: None for a copy.
        position: The row's.
    """
    (source, start), (sink, to) = row
    done = 0
    if rotation is not None:
        half, done = rotation.half, 2 * rotation.half
        angle = e.share(position * e.i64(half))
        step, distance = (2, 1) if rotation.is_interleaved else (1, half)
        cos, sin = buffers[rotation.cos], buffers[rotation.sin]

        def turn(first: Expr, count: int) -> None:
            with e.lanes(count) as lane:
                at = first + lane
                column = at * e.i64(step) if step > 1 else at
                low, high = source[start + column], source[start + e.i64(distance) + column]
                low, high = e.share(low), e.share(high)
                c, s = e.share(cos[angle + at]), e.share(sin[angle + at])
                e.store(sink, low * c - high * s, to + column)
                e.store(sink, high * c + low * s, to + e.i64(distance) + column)

        e.each_block(half, turn)

    def copy(first: Expr, count: int) -> None:
        with e.lanes(count) as lane:
            at = e.i64(done) + first + lane
            e.store(sink, source[start + at], to + at)

    if done < width:
        e.each_block(width - done, copy)

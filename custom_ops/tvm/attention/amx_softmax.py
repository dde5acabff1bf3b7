"""Rows of scores: their softmax, as far as it is known, and the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import LOG2_E, exp2_rough, exp_nonpositive

from ...forms.attention_cpu import AttentionForm
from ..gemm.bf16_emitter import PAIRS
from ..tile.registers import VECTOR
from .amx_emitter import RowEmitter
from .operand_layout import LOWEST, OperandLayout

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    Pointer = tuple[Buffer, Expr]


# By how much scores may exceed what exponentials are relative to: these then stay far below what
# float32 and bfloat16 hold, and are as exact.
_SLACK = 8.0


@dataclass(frozen=True)
class Scores:
    """The scores of up to 32 queries of a group and one block of keys.

    Args:
        layout: The group.
        first: The block's first key.
        keys: How many it has.
        row: The first query, in the group.
        count: How many the group has.
        mask: Where the head's mask begins, if there is one.
    """

    layout: OperandLayout
    first: Expr
    keys: Expr
    row: Expr
    count: Expr
    mask: Expr | None


@dataclass(frozen=True)
class Rows:
    """What is done to rows of scores.

    Args:
        e: The emitter that writes the statements.
        form: What is computed.
        buffers: The region's tensors.
        pitch: Between rows of scores and of weights, in elements.
    """

    e: RowEmitter
    form: AttentionForm
    buffers: list[Buffer]
    pitch: int

    def keys_of_part(self, scores: Scores) -> Expr:
        """Return how many keys any of the 32 queries sees."""
        if not self.form.is_causal:
            return scores.keys
        return self.e.share(self._seen(scores, scores.row + self.e.i64(PAIRS - 1)))

    def _seen(self, scores: Scores, row: Expr) -> Expr:
        """Return how many keys of the block a query sees; 0 or less for none."""
        e = self.e
        if not self.form.is_causal:
            return scores.keys
        until = scores.layout.start + row + e.i64(1)
        return e.minimum(scores.keys, until - scores.first)

    @property
    def _unit(self) -> float:
        """What scores are multiplied by: as powers of 2 they need no product of their own.

        With a mask they stay as they are: its lowest numbers would become -inf.
        """
        return LOG2_E if self.form.mask is None else 1.0

    def weigh(
        self,
        scores: Scores,
        steps: Expr,
        given: Pointer,
        weights: Pointer,
        sums: Pointer,
        largest: Buffer,
        total: Buffer,
    ) -> None:
        """Write the weights of all rows, and let sums and totals become as much smaller.

        What exponentials are relative to stays until a score exceeds it by `_SLACK`: most blocks
        of keys leave sums and totals as they are, and need no row's largest score.

        Args:
            scores: Which.
            steps: How many times 32 keys there are.
            given: The scores.
            weights: Written: exponentials in bfloat16.
            sums: Of values, [query, column].
            largest: What exponentials are relative to so far, in `_unit`, [query].
            total: Of exponentials so far, [query, 16].
        """
        e = self.e
        with e.loop(e.share(e.minimum(scores.count - scores.row, e.i64(PAIRS)))) as index:
            row = e.share(scores.row + index)
            seen = e.share(e.tir.max(self._seen(scores, row), e.i64(0)))
            of = given[0], e.share(given[1] + index * e.i64(self.pitch))
            found = self._largest(scores, row, steps, seen, of)
            with e.block() as rises:
                self._rise(found, row, scores.first > e.i64(0), sums, largest, total)
            e.when(e.exceeds(found, largest[row] + e.f32(_SLACK)), rises)
            to = weights[0], e.share(weights[1] + index * e.i64(self.pitch))
            self._exponentiate(of, steps, seen, e.share(largest[row]), to, (total, row))

    def _rise(
        self,
        found: Buffer,
        row: Expr,
        has_sums: Expr,
        sums: Pointer,
        largest: Buffer,
        total: Buffer,
    ) -> None:
        """Emit what makes a row's exponentials relative to the largest number of a vector."""
        e = self.e
        new = e.largest_of(found)
        with e.block() as rescale:
            fall = e.share((largest[row] - new) * e.f32(1.0 / self._unit))
            factor = exp_nonpositive(e, fall)
            self._rescale(sums, row, factor)
            at = e.share(row * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                e.store(total, total[at + lane] * factor, at + lane)
        e.when(has_sums, rescale)
        e.store(largest, new, row)

    def _rescale(self, sums: Pointer, row: Expr, factor: Expr) -> None:
        e, width = self.e, self.form.v.width
        begin = e.share(sums[1] + row * e.i64(width))
        with e.each_vector(e.i64(width // VECTOR), begin) as (at, lane):
            e.store(sums[0], sums[0][at + lane] * factor, at + lane)

    def _each_pair(self, steps: Expr, seen: Expr, body: Callable[[Expr, bool], None]) -> None:
        """Emit `body` for every 32 keys: first those that are all seen."""
        e = self.e
        whole = e.share(e.divide_down(seen, PAIRS))
        with e.loop(whole) as step:
            body(e.share(step * e.i64(PAIRS)), False)
        with e.loop(e.share(steps - whole)) as step:
            body(e.share((whole + step) * e.i64(PAIRS)), True)

    def _where_seen(self, start: Expr, lane: Expr, seen: Expr, value: Expr) -> Expr:
        """Return -inf for a key that is not seen."""
        e = self.e
        # In 32 bits, where a vector of keys is compared by one instruction.
        left = e.cast(seen - start, "int32")
        return e.share(e.select(e.cast(lane, "int32") < left, value, e.f32(float("-inf"))))

    def _largest(self, scores: Scores, row: Expr, steps: Expr, seen: Expr, of: Pointer) -> Buffer:
        """Return a vector that has the largest score of a row; what is masked is written."""
        e, (given, begin), mask = self.e, of, self.form.mask
        halves = [e.scratch(), e.scratch()]
        for half in halves:
            with e.vector(VECTOR) as lane:
                e.store(half, e.f32(float("-inf")), lane)
        added = e.i64(0)
        if mask is not None and scores.mask is not None:
            keys = e.extent(self.form.k.length)
            added = e.share(scores.mask + (scores.layout.start + row) * keys + scores.first)

        def keep(key: Expr, is_edge: bool) -> None:
            for number, half in enumerate(halves):
                start = e.share(key + e.i64(number * VECTOR))
                with e.vector(VECTOR) as lane:
                    here = start + lane
                    value = given[begin + here]
                    if mask is not None:
                        near = e.minimum(here, seen - e.i64(1)) if is_edge else here
                        added_here = scores.layout.mask_at(added + near)
                        value = value * e.f32(self.form.scale) + added_here
                    value = e.share(value)
                    if is_edge:
                        value = self._where_seen(start, lane, seen, value)
                    if mask is not None:
                        e.store(given, value, begin + here)
                    # A NaN is not larger; it comes out of the exponentials.
                    e.store(half, e.select(value > half[lane], value, half[lane]), lane)

        self._each_pair(steps, seen, keep)
        with e.vector(VECTOR) as lane:
            first, other = halves[0][lane], halves[1][lane]
            found = e.share(e.select(first > other, first, other))
            if mask is None:  # a positive scale keeps the largest
                found = e.share(found * e.f32(self.form.scale * self._unit))
            e.store(halves[0], found, lane)
        return halves[0]

    def _exponentiate(
        self, of: Pointer, steps: Expr, seen: Expr, largest: Expr, weights: Pointer, total: Pointer
    ) -> None:
        e, (given, begin), has_mask = self.e, of, self.form.mask is not None
        at = e.share(total[1] * e.i64(VECTOR))
        halves = [e.scratch(), e.scratch()]
        for half, part in zip(halves, (total[0], None), strict=True):
            with e.vector(VECTOR) as lane:
                value = e.f32(0.0) if part is None else part[at + lane]
                e.store(half, value, lane)
        # Of a row in which nothing counts it is the lowest number, and -inf less that NaN.
        largest = e.share(e.tir.max(largest, e.f32(LOWEST / 2.0))) if not has_mask else largest

        def power(start: Expr, lane: Expr, is_edge: bool) -> Expr:
            value = e.share(given[begin + start + lane])
            if has_mask:
                return e.share((value - largest) * e.f32(LOG2_E))
            if is_edge:
                value = self._where_seen(start, lane, seen, value)
            return e.share(value * e.f32(self.form.scale * self._unit) - largest)

        def keep(key: Expr, is_edge: bool) -> None:
            powers = [e.scratch(), e.scratch()]
            for number, (half, made) in enumerate(zip(halves, powers, strict=True)):
                start = e.share(key + e.i64(number * VECTOR))
                with e.vector(VECTOR) as lane:
                    value = exp2_rough(e, power(start, lane, is_edge))
                    e.store(made, value, lane)
                    e.store(half, half[lane] + value, lane)
            low, high = (e.row(made, 0, VECTOR) for made in powers)
            e.put(weights[0], weights[1] + key, e.rounded_pair(low, high), PAIRS)

        self._each_pair(steps, seen, keep)
        with e.vector(VECTOR) as lane:
            e.store(total[0], halves[0][lane] + halves[1][lane], at + lane)

    # ---- results
    def write(
        self, layout: OperandLayout, count: Expr, sums: Pointer, largest: Buffer, total: Buffer
    ) -> None:
        """Write the sums over their totals; zeros for a query none of whose scores counts."""
        e, v, result = self.e, self.form.v, self.form.result
        output = self.buffers[result.tensor]
        is_narrow = e.dtypes[result.tensor] == "bfloat16"
        sink = e.share(layout.base(result, layout.head) + layout.start * e.i64(result.pitch))
        with e.loop(count) as row:
            whole = e.scratch()
            with e.vector(VECTOR) as lane:
                e.store(whole, total[row * e.i64(VECTOR) + lane], lane)
            counts = largest[row] > e.f32(LOWEST)
            factor = e.share(e.select(counts, e.f32(1.0) / e.sum_of(whole), e.f32(0.0)))
            source = e.share(sums[1] + row * e.i64(v.width))
            to = e.share(sink + row * e.i64(result.pitch))

            def finished(column: int, row_of: Expr = source, by: Expr = factor) -> Buffer:
                vector = e.scratch()
                with e.vector(VECTOR) as lane:
                    e.store(vector, sums[0][row_of + e.i64(column) + lane] * by, lane)
                return vector

            for column in range(0, v.width, PAIRS):
                parts = [
                    finished(at) for at in range(column, min(column + PAIRS, v.width), VECTOR)
                ]
                if not is_narrow:
                    for number, part in enumerate(parts):
                        at = to + e.i64(column + number * VECTOR)
                        e.put(output, at, e.row(part, 0, VECTOR), VECTOR)
                    continue
                vectors = [e.row(part, 0, VECTOR) for part in parts]
                rounded = e.rounded_pair(vectors[0], vectors[-1])
                if len(parts) == 1:
                    rounded = e.shuffled(rounded, rounded, range(VECTOR))
                e.put(output, to + e.i64(column), rounded, len(parts) * VECTOR)

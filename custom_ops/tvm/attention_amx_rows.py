"""Rows of scores: their softmax, as far as it is known, and the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.region.vectormath import exp_nonpositive, exp_nonpositive_rough

from .attention_amx_emitter import RowEmitter
from .attention_form import AttentionForm
from .attention_places import LOWEST, Places
from .bf16_emitter import PAIRS
from .registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    Place = tuple[Buffer, Expr]


@dataclass(frozen=True)
class Scores:
    """The scores of up to 32 queries of a group and one block of keys.

    Args:
        places: The group.
        first: The block's first key.
        keys: How many it has.
        row: The first query, in the group.
        count: How many the group has.
        mask: Where the head's mask begins, if there is one.
    """

    places: Places
    first: Expr
    keys: Expr
    row: Expr
    count: Expr
    mask: Expr | None


@dataclass(frozen=True)
class Rows:
    """What is done to rows of scores.

    Args:
        e: Where to.
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
        until = scores.places.start + row + e.i64(1)
        return e.minimum(scores.keys, until - scores.first)

    def weigh(
        self,
        scores: Scores,
        steps: Expr,
        given: Place,
        weights: Place,
        sums: Place,
        largest: Buffer,
        total: Buffer,
    ) -> None:
        """Write the weights of all rows, and let sums and totals become as much smaller.

        Args:
            scores: Which.
            steps: How many times 32 keys there are.
            given: The scores.
            weights: Written: exponentials in bfloat16.
            sums: Of values, [query, column].
            largest: Of all scores so far, [query].
            total: Of exponentials so far, [query, 16].
        """
        e = self.e
        with e.loop(e.share(e.minimum(scores.count - scores.row, e.i64(PAIRS)))) as index:
            row = e.share(scores.row + index)
            seen = e.share(e.tir.max(self._seen(scores, row), e.i64(0)))
            begin = e.share(given[1] + index * e.i64(self.pitch))
            score = self._scores(scores, given[0], begin, row, seen)
            before = e.share(largest[row])
            new = self._largest(score, steps, seen, before, given[0], begin)
            factor = exp_nonpositive(e, e.share(before - new))
            e.store(largest, new, row)
            with e.block() as rescale:
                self._rescale(sums, row, factor)
            e.when(scores.first > e.i64(0), rescale)
            to = weights[0], e.share(weights[1] + index * e.i64(self.pitch))
            self._exponentiate(score, steps, seen, new, factor, to, (total, row))

    def _scores(
        self, scores: Scores, given: Buffer, begin: Expr, row: Expr, seen: Expr
    ) -> Callable[[Expr, bool, bool], Expr]:
        """Return what gives a score by the number of its key in the block.

        It is asked whether some keys may not be seen, and whether the score was written before.
        """
        e, mask = self.e, self.form.mask
        keys = e.extent(self.form.k.length)
        added = None
        if mask is not None and scores.mask is not None:
            added = e.share(scores.mask + (scores.places.start + row) * keys + scores.first)

        def score(key: Expr, is_edge: bool, is_known: bool) -> Expr:
            value = given[begin + key]
            if added is None:
                value = value * e.f32(self.form.scale)
            elif not is_known:
                near = e.minimum(key, seen - e.i64(1)) if is_edge else key
                value = value * e.f32(self.form.scale) + self._mask_at(added + near)
            if is_edge and not (added is not None and is_known):
                value = e.select(key < seen, value, e.f32(float("-inf")))
            return e.share(value)

        return score

    def _mask_at(self, at: Expr) -> Expr:
        e, mask = self.e, self.form.mask
        assert mask is not None
        value = self.buffers[mask.tensor][at]
        if e.dtypes[mask.tensor] == "float32":
            return value
        return e.select(e.not_equal(value, e.u8(0)), e.f32(0.0), e.f32(LOWEST))

    def _each_pair(self, steps: Expr, seen: Expr, body: Callable[[Expr, bool], None]) -> None:
        """Emit `body` for every 32 keys: first those that are all seen."""
        e = self.e
        whole = e.share(e.divide_down(seen, PAIRS))
        with e.loop(whole) as step:
            body(e.share(step * e.i64(PAIRS)), False)
        with e.loop(e.share(steps - whole)) as step:
            body(e.share((whole + step) * e.i64(PAIRS)), True)

    def _largest(
        self,
        score: Callable[[Expr, bool, bool], Expr],
        steps: Expr,
        seen: Expr,
        before: Expr,
        given: Buffer,
        begin: Expr,
    ) -> Expr:
        """Return the largest score of a row and those before; what is masked is written."""
        e, has_mask = self.e, self.form.mask is not None
        halves = [e.scratch(), e.scratch()]
        for half in halves:
            with e.vector(VECTOR) as lane:
                e.store(half, e.f32(float("-inf")), lane)

        def keep(key: Expr, is_edge: bool) -> None:
            for number, half in enumerate(halves):
                start = e.share(key + e.i64(number * VECTOR))
                with e.vector(VECTOR) as lane:
                    key_here = start + lane
                    if has_mask:
                        value = score(key_here, is_edge, False)
                        e.store(given, value, begin + key_here)
                    else:  # the scale is positive: the largest score before it is so behind it
                        value = e.share(given[begin + key_here])
                        if is_edge:
                            hidden = e.f32(float("-inf"))
                            value = e.share(e.select(key_here < seen, value, hidden))
                    # A NaN is not larger; it comes out of the exponentials.
                    e.store(half, e.select(value > half[lane], value, half[lane]), lane)

        self._each_pair(steps, seen, keep)
        with e.vector(VECTOR) as lane:
            first, other = halves[0][lane], halves[1][lane]
            e.store(halves[0], e.select(first > other, first, other), lane)
        found = e.largest_of(halves[0])
        if not has_mask:
            found = e.share(found * e.f32(self.form.scale))
        return e.share(e.select(found > before, found, before))

    def _rescale(self, sums: Place, row: Expr, factor: Expr) -> None:
        e, width = self.e, self.form.v.width
        begin = e.share(sums[1] + row * e.i64(width))
        with e.loop(e.i64(width // VECTOR)) as part:
            at = e.share(begin + part * e.i64(VECTOR))
            with e.vector(VECTOR) as lane:
                e.store(sums[0], sums[0][at + lane] * factor, at + lane)

    def _exponentiate(
        self,
        score: Callable[[Expr, bool, bool], Expr],
        steps: Expr,
        seen: Expr,
        largest: Expr,
        factor: Expr,
        weights: Place,
        total: Place,
    ) -> None:
        e = self.e
        at = e.share(total[1] * e.i64(VECTOR))
        halves = [e.scratch(), e.scratch()]
        for half, part in zip(halves, (total[0], None), strict=True):
            with e.vector(VECTOR) as lane:
                value = e.f32(0.0) if part is None else part[at + lane] * factor
                e.store(half, value, lane)

        def keep(key: Expr, is_edge: bool) -> None:
            powers = [e.scratch(), e.scratch()]
            for number, (half, power) in enumerate(zip(halves, powers, strict=True)):
                start = e.share(key + e.i64(number * VECTOR))
                with e.vector(VECTOR) as lane:
                    away = e.share(score(start + lane, is_edge, True) - largest)
                    value = exp_nonpositive_rough(e, away)
                    e.store(power, value, lane)
                    e.store(half, half[lane] + value, lane)
            low, high = (e.row(power, 0, VECTOR) for power in powers)
            e.put(weights[0], weights[1] + key, e.rounded_pair(low, high), PAIRS)

        self._each_pair(steps, seen, keep)
        with e.vector(VECTOR) as lane:
            e.store(total[0], halves[0][lane] + halves[1][lane], at + lane)

    # ---- results
    def write(
        self, places: Places, count: Expr, sums: Place, largest: Buffer, total: Buffer
    ) -> None:
        """Write the sums over their totals; zeros for a query none of whose scores counts."""
        e, v, result = self.e, self.form.v, self.form.result
        output = self.buffers[result.tensor]
        is_narrow = e.dtypes[result.tensor] == "bfloat16"
        sink = e.share(places.base(result, places.head) + places.start * e.i64(result.pitch))
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

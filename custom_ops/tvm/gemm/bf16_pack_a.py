"""Rows of a product's left operand as blocks read them: bfloat16, filled up with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.region.dtypes import load

from ..tile.emitter import parts
from ..tile.registers import VECTOR
from .bf16_emitter import PAIRS, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


@dataclass(frozen=True)
class Gate:
    """Factors of the elements of rows.

    Args:
        buffer: float32.
        start: From the number of a row to the place of its first factor.
    """

    buffer: Buffer
    start: Callable[[Expr], Expr]


def copy_rows(
    e: Bf16Emitter,
    source: tuple[Buffer, Expr],
    sink: tuple[Buffer, Expr, int],
    rows: Expr,
    depth: int,
    gate: Gate | None = None,
) -> None:
    """Emit a copy of rows.

    Args:
        e: The emitter that writes the statements.
        source: float32, or bfloat16 as uint16, and the element that the first row begins at.
        sink: bfloat16 as uint16, where it begins, and how many elements its rows are apart.
        rows: Number of rows.
        depth: Elements of a row; zeros come up to a multiple of 32.
        gate: What rows are multiplied by before they are rounded, if anything.
    """
    (source_buffer, start), (sink_buffer, origin, stride) = source, sink
    with e.loop(rows) as row:
        begin = e.share(start + row * e.i64(depth))
        to = e.share(origin + row * e.i64(stride))
        of = _Row(e, source_buffer, begin, None)
        if gate is not None:
            of = _Row(e, source_buffer, begin, (gate.buffer, e.share(gate.start(row))))
        with e.loop(e.i64(depth // PAIRS)) as step:
            at = e.share(step * e.i64(PAIRS))
            e.put(sink_buffer, to + at, of.pairs(at), PAIRS)
        if depth % PAIRS:
            at = e.i64(depth // PAIRS * PAIRS)
            e.put(sink_buffer, to + at, of.last_pairs(at, depth % PAIRS), PAIRS)


@dataclass(frozen=True)
class _Row:
    """One row that is copied: where it begins, and its factors."""

    e: Bf16Emitter
    source: Buffer
    begin: Expr
    gate: tuple[Buffer, Expr] | None

    @property
    def _dtype(self) -> str:
        is_wide = self.e.dtype(self.source[self.e.i64(0)]) == "float32"
        return "float32" if is_wide else "bfloat16"

    def pairs(self, at: Expr) -> Expr:
        """Return 32 elements from `at` on as bfloat16."""
        e, begin = self.e, self.begin
        if self.gate is not None:
            halves = e.scratch(), e.scratch()
            for number, half in enumerate(halves):
                with e.vector(VECTOR) as lane:
                    e.store(half, self._value(at + e.i64(number * VECTOR) + lane), lane)
            low, high = (e.row(half, 0, VECTOR) for half in halves)
            return e.rounded_pair(low, high)
        if self._dtype == "bfloat16":
            return e.part(self.source, begin + at, PAIRS)
        low = e.part(self.source, begin + at, VECTOR)
        high = e.part(self.source, begin + at + e.i64(VECTOR), VECTOR)
        return e.rounded_pair(low, high)

    def last_pairs(self, at: Expr, count: int) -> Expr:
        """Return `count` elements from `at` on and zeros, 32 together, as bfloat16."""
        e = self.e
        is_wide = self.gate is not None or self._dtype == "float32"
        dtype = "float32" if is_wide else "uint16"
        filled = e.local(PAIRS, dtype)
        for half in range(0, PAIRS, VECTOR):
            with e.vector(VECTOR) as lane:
                e.store(filled, e.constant(0, dtype), e.i64(half) + lane)
        for half in range(0, count, VECTOR):
            for offset, width in parts(min(VECTOR, count - half)):
                with e.lanes(width) as lane:
                    start = e.i64(half + offset) + lane
                    value = self._value(at + start) if is_wide else self._raw(at + start)
                    e.store(filled, value, start)
        if not is_wide:
            return e.part(filled, e.i64(0), PAIRS)
        low, high = (e.part(filled, e.i64(half), VECTOR) for half in (0, VECTOR))
        return e.rounded_pair(low, high)

    def _raw(self, at: Expr) -> Expr:
        return self.source[self.begin + at]

    def _value(self, at: Expr) -> Expr:
        """Return an element as float32, times its factor."""
        value = load(self.e, self._raw(at), self._dtype)
        if self.gate is None:
            return value
        buffer, start = self.gate
        return value * buffer[start + at]

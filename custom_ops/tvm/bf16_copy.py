"""Rows of a product's left operand as blocks read them: bfloat16, filled up with zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bf16_emitter import PAIRS, Bf16Emitter
from .emitter import parts
from .registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


def copy_rows(
    e: Bf16Emitter,
    source: tuple[Buffer, Expr],
    sink: tuple[Buffer, Expr, int],
    rows: Expr,
    depth: int,
) -> None:
    """Emit a copy of rows.

    Args:
        e: Where to.
        source: float32, or bfloat16 as uint16, and the element that the first row begins at.
        sink: bfloat16 as uint16, where it begins, and how many elements its rows are apart.
        rows: How many.
        depth: Elements of a row; zeros come up to a multiple of 32.
    """
    (source_buffer, start), (sink_buffer, origin, stride) = source, sink
    with e.loop(rows) as row:
        begin = e.share(start + row * e.i64(depth))
        to = e.share(origin + row * e.i64(stride))
        with e.loop(e.i64(depth // PAIRS)) as step:
            at = e.share(step * e.i64(PAIRS))
            e.put(sink_buffer, to + at, _pairs(e, source_buffer, begin + at), PAIRS)
        if depth % PAIRS:
            at = e.i64(depth // PAIRS * PAIRS)
            last = _filled(e, source_buffer, begin + at, depth % PAIRS)
            e.put(sink_buffer, to + at, _pairs(e, last, e.i64(0)), PAIRS)


def _pairs(e: Bf16Emitter, source: Buffer, at: Expr) -> Expr:
    """Return 32 elements as bfloat16."""
    if e.dtype(source[e.i64(0)]) == "uint16":
        return e.part(source, at, PAIRS)
    low, high = e.part(source, at, VECTOR), e.part(source, at + e.i64(VECTOR), VECTOR)
    return e.rounded_pair(low, high)


def _filled(e: Bf16Emitter, source: Buffer, at: Expr, count: int) -> Buffer:
    """Return `count` elements and zeros, 32 together, on the stack."""
    dtype = e.dtype(source[e.i64(0)])
    result = e.local(PAIRS, dtype)
    for half in range(0, PAIRS, VECTOR):
        with e.vector(VECTOR) as lane:
            e.store(result, e.constant(0, dtype), e.i64(half) + lane)
    for half in range(0, count, VECTOR):
        for offset, width in parts(min(VECTOR, count - half)):
            with e.lanes(width) as lane:
                place = e.i64(half + offset) + lane
                e.store(result, source[at + place], place)
    return result

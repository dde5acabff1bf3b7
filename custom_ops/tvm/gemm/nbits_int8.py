"""A few rows times weights of 4 or 8 bits, as int8 dot products.

Rows are rounded to int8 with a scale for each block, as ONNX Runtime does at accuracy level 4. A
chunk is 64 bytes of a column's weights as they lie: 128 of 4 bits, or 64 of 8. Its sums of bytes
are exact. What is left of a column behind whole chunks is the end of a last chunk, whose other
elements of a row are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.tvm.emit import NEAREST

from ..tile.registers import VECTOR
from .nbits_emitter import BYTES, NBitsEmitter
from .nbits_weights import add_zeros

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .nbits_weights import Blocks

# How far ahead weights and scales are asked for, in bytes: a page.
_AHEAD = 4096
_SCALES_AHEAD = 512
# The largest int8 that rows are rounded to, and the least largest number of a block that is not 0.
_LARGEST, _LEAST = 127.0, 1e-30
_NO_SIGN = 0x7FFFFFFF
_EACH_BYTE = 0x01010101


@dataclass(frozen=True)
class Chunks:
    """How columns are cut into chunks.

    Args:
        of: The weights.
    """

    of: Blocks

    @property
    def width(self) -> int:
        """Weights of a chunk."""
        return BYTES * 8 // self.of.bits

    @property
    def whole(self) -> int:
        """Chunks that a column has, but for the last that is cut."""
        return self.of.depth // self.width

    @property
    def left(self) -> int:
        """Weights behind whole chunks."""
        return self.of.depth % self.width

    @property
    def count(self) -> int:
        """Chunks, the last one included."""
        return self.whole + bool(self.left)

    @property
    def parts(self) -> int:
        """Vectors of bytes that the weights of a chunk become."""
        return 8 // self.of.bits

    @property
    def blocks(self) -> int:
        """Scales of a chunk."""
        return max(1, self.width // self.of.block)

    def first_weight(self, e: NBitsEmitter, chunk: Expr, *, is_last: bool) -> Expr:
        """Return the weight that a chunk begins at."""
        return e.i64(self.of.depth - self.width) if is_last else chunk * e.i64(self.width)


@dataclass(frozen=True)
class QuantizedRows:
    """A few rows in int8.

    Args:
        plain: uint8 [depth], a row in its own order, and where it begins.
        values: uint8 [rows, chunks, parts, 64]: of 4-bit weights even elements, then odd ones.
        begin: The element that the first row begins at.
        starts: int32 [rows, chunks, 16]: what the sums of bytes begin with, the middle of the
            weights' range times the elements, subtracted.
        scales: float32 [rows, blocks].
        sums: float32 [rows, blocks], the sums of the rounded row's blocks; None if not needed.
    """

    plain: tuple[Buffer, Expr]
    values: Buffer
    begin: Expr
    starts: Buffer
    scales: Buffer
    sums: Buffer | None


def quantized_rows_for(e: NBitsEmitter, of: Blocks, count: int) -> QuantizedRows:
    """Declare room for rows."""
    chunks = Chunks(of)
    plain = e.aligned(of.depth, "uint8")
    values, begin = e.aligned(count * chunks.count * chunks.width, "uint8")
    starts = e.local(count * chunks.count * VECTOR, "int32")
    # Of a last chunk as many are read as of each.
    scales = e.local(count * of.count, "float32")
    sums = None if of.zero is None else e.local(count * of.count, "float32")
    return QuantizedRows(plain, values, begin, starts, scales, sums)


def quantize_block(
    e: NBitsEmitter,
    source: tuple[Buffer, Expr],
    count: int,
    sink: tuple[Buffer, Expr],
    offset: int = 0,
    order: Sequence[int] | None = None,
) -> tuple[Expr, Expr]:
    """Emit a block of a row as int8 with one scale, and return the scale and the block's sum.

    Args:
        e: The emitter that writes the statements.
        source: float32, and where the block begins.
        count: Of elements, a multiple of 16.
        sink: uint8, and where to begin.
        offset: What is added to each: 128 for bytes without a sign.
        order: Which of 16 elements follow each other in the sink; None: as they are.

    Returns:
        The scale, float32, and the numbers' sum without the offset, int32. The scale of a block
        with NaN or infinities is none, either.
    """
    buffer, start = source
    values = [
        e.share_row(e.part(buffer, start + e.i64(at), VECTOR), VECTOR, "float32")
        for at in range(0, count, VECTOR)
    ]
    # As integers NaN is the largest.
    largest = None
    for value in values:
        bits = e.tir.reinterpret("int32x16", value)
        bits = e.tir.bitwise_and(bits, e.tir.Broadcast(e.i32(_NO_SIGN), VECTOR))
        bits = e.share_row(bits, VECTOR, "int32")
        largest = bits if largest is None else e.tir.max(largest, bits)
    largest = e.share(e.tir.reinterpret("float32", e.largest_int(largest)))
    scale = e.share(largest * e.f32(1 / _LARGEST))
    inverse = e.select(largest > e.f32(_LEAST), e.f32(_LARGEST) / largest, e.f32(0.0))
    factor = e.tir.Broadcast(e.share(inverse), VECTOR)
    total = None
    for number, value in enumerate(values):
        rounded = e.share_row(e.nearest(value * factor), VECTOR, "int32")
        total = rounded if total is None else total + rounded
        moved = rounded + e.tir.Broadcast(e.i32(offset), VECTOR) if offset else rounded
        moved = moved if order is None else e.shuffled(moved, moved, order)
        at = sink[1] + e.i64(number * VECTOR)
        e.put(sink[0], at, e.cast(moved, "uint8x16"), VECTOR)
    return scale, total


def quantize_row(
    e: NBitsEmitter, of: Blocks, source: tuple[Buffer, Expr], rows: QuantizedRows, number: int
) -> None:
    """Emit a row as int8.

    Args:
        e: The emitter that writes the statements.
        of: The weights that it is multiplied by.
        source: float32, and the element that the row begins at.
        rows: Where to.
        number: Which of them.
    """
    chunks, (plain, origin) = Chunks(of), rows.plain
    with e.loop(e.i64(of.count)) as block:
        at = e.share(block * e.i64(of.block))
        sink = plain, e.share(origin + at)
        scale, total = quantize_block(e, (source[0], e.share(source[1] + at)), of.block, sink)
        offset = e.share(e.i64(number * of.count) + block)
        e.store(rows.scales, scale, offset)
        if rows.sums is not None:
            e.store(rows.sums, scale * e.cast(e.sum_int(total), "float32"), offset)
    with e.loop(e.i64(chunks.whole)) as chunk:
        begin = e.share(origin + chunks.first_weight(e, chunk, is_last=False))
        _put_chunk(e, chunks, (plain, begin), rows, (number, chunk))
    if chunks.left:
        last, start = e.aligned(chunks.width, "uint8")
        for at in range(0, chunks.width, VECTOR):
            value = e.tir.Broadcast(e.u8(0), VECTOR)
            if at >= chunks.width - chunks.left:
                value = e.part(plain, origin + e.i64(of.depth - chunks.width + at), VECTOR)
            e.put(last, start + e.i64(at), value, VECTOR)
        _put_chunk(e, chunks, (last, start), rows, (number, e.i64(chunks.whole)))


def _put_chunk(
    e: NBitsEmitter,
    chunks: Chunks,
    source: tuple[Buffer, Expr],
    rows: QuantizedRows,
    at: tuple[int, Expr],
) -> None:
    """Emit the elements of a row that a chunk of weights meets, in its order."""
    (buffer, begin), (number, chunk) = source, at
    whole = [
        e.share_bytes(e.sixty_four(buffer, begin + e.i64(part * BYTES)))
        for part in range(chunks.parts)
    ]
    if chunks.of.bits == 4:
        whole = [e.share_bytes(make(*whole)) for make in (e.even_bytes, e.odd_bytes)]
    offset = e.share(e.i64(number * chunks.count) + chunk)
    to = e.share(rows.begin + offset * e.i64(chunks.width))
    middle = e.everywhere(e.constant(int(chunks.of.middle) * _EACH_BYTE, "uint32"))
    total = e.tir.Broadcast(e.i32(0), VECTOR)
    for part, value in enumerate(whole):
        e.put_bytes(rows.values, to + e.i64(part * BYTES), value)
        total = e.share_row(e.dot4(total, middle, value), VECTOR, "int32")
    start = e.tir.Broadcast(e.i32(0), VECTOR) - total
    e.put(rows.starts, offset * e.i64(VECTOR), start, VECTOR)


def dot_column_int8(
    e: NBitsEmitter, of: Blocks, rows: QuantizedRows, count: int, column: Expr
) -> list[Expr]:
    """Emit the products of a few rows and a column.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        rows: The rows.
        count: How many there are.
        column: The column.

    Returns:
        For each row a vector whose numbers add up to the product.
    """
    chunks = Chunks(of)
    totals = [e.scratch() for _ in range(count)]
    for total in totals:
        e.store_row(total, e.tir.Broadcast(e.f32(0.0), VECTOR), 0, VECTOR)
    with e.loop(e.i64(chunks.whole)) as chunk:
        _dot_chunk(e, chunks, rows, (column, chunk), totals, is_last=False)
    if chunks.left:
        _dot_chunk(e, chunks, rows, (column, e.i64(chunks.whole)), totals, is_last=True)
    if rows.sums is not None:
        add_zeros(e, of, rows.sums, column, totals)
    return [e.row(total, 0, VECTOR) for total in totals]


def _dot_chunk(
    e: NBitsEmitter,
    chunks: Chunks,
    rows: QuantizedRows,
    at: tuple[Expr, Expr],
    totals: list[Buffer],
    *,
    is_last: bool,
) -> None:
    of, (column, chunk) = chunks.of, at
    first = e.share(chunks.first_weight(e, chunk, is_last=is_last))
    weight = column * e.i64(of.depth) + first
    byte = e.share(weight if of.bits == 8 else e.divide_down(weight, 2))
    e.prefetch(of.weight, byte + e.i64(_AHEAD), NEAREST)
    weights = e.share_bytes(e.sixty_four(of.weight, byte))
    parts = [weights]
    if of.bits == 4:
        parts = [e.share_bytes(make(weights)) for make in (e.low_nibbles, e.high_nibbles)]
    block = e.share(e.divide_down(first, of.block))
    offset = e.share(column * e.i64(of.count) + block)
    e.prefetch(of.scale, offset + e.i64(_SCALES_AHEAD // 4), NEAREST)
    scale = e.part(of.scale, offset, chunks.blocks)
    scale = e.share_row(scale, chunks.blocks, "float32") if chunks.blocks > 1 else e.share(scale)
    for row, total in enumerate(totals):
        here = e.share(e.i64(row * chunks.count) + chunk)
        found = e.part(rows.starts, here * e.i64(VECTOR), VECTOR)
        for number, part in enumerate(parts):
            to = rows.begin + here * e.i64(chunks.width) + e.i64(number * BYTES)
            found = e.dot4(found, part, e.sixty_four(rows.values, to))
        factor = scale * e.part(rows.scales, e.i64(row * of.count) + block, chunks.blocks)
        factor = e.spread(factor, chunks.blocks)
        added = e.row(total, 0, VECTOR) + e.cast(found, "float32x16") * factor
        e.store_row(total, added, 0, VECTOR)

"""Many rows times weights of 4 or 8 bits, as int8 dot products.

A part of a panel's columns becomes int8, four elements of the depth of 16 columns in a vector, and
stays in the cache while tiles of rows are multiplied by it. Rows are rounded to int8 with a scale
for each block and 128 is added, since one operand has no sign; sums begin with what that adds.
Weights of 8 bits less their zeros may exceed int8. They are taken as if all zeros were the middle,
and (middle - zero) times the sum of the row's block is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ortkit.kernels.tvm.emit import NEAREST

from ..tile.registers import REGISTERS, VECTOR
from ..tile.transpose import transposed
from .bf16_emitter import PAIRS
from .nbits_emitter import BYTES, NBitsEmitter
from .nbits_int8 import quantize_block

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from .nbits_weights import Blocks

#: What is added to rows in int8.
_OFFSET = 128
_EACH_BYTE = 0x01010101
# Elements of the depth that one instruction adds up.
_GROUP = 4
#: Which of 16 elements of the depth follow each other where weights have 4 bits: of each 4 bytes
#: the low halves, then the high ones.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
# Elements of a block that are summed at once, without a loop around: there LLVM kept the sums of
# bytes in memory, and 128 rows of 2,048 x 8,192 in blocks of 64 took 45 ms instead of 13 (Zen 4,
# 2026-11-28). 256 took more than a minute to compile.
_SPAN = 128
#: Elements of the depth that panels and rows become int8 of at once, at most.
PART = 512


@dataclass(frozen=True)
class TileShape:
    """Accumulators of a level.

    Args:
        rows: How many rows are multiplied at once.
        vectors: By how many vectors of 16 columns.
        holds_sums: Whether registers hold the sums of float32 beside those of bytes.
    """

    rows: int
    vectors: int
    holds_sums: bool


def tile_shape(level: str) -> TileShape:
    """Return the tile whose sums, weights and operands fit the registers of a level."""
    wide = REGISTERS[level].lanes == VECTOR
    return TileShape(6, 2, holds_sums=True) if wide else TileShape(4, 1, holds_sums=False)


@dataclass(frozen=True)
class Panel:
    """A part of a panel of 32 columns.

    Args:
        values: uint8 (of int8) [2, PART / 4, 16, 4], and where it begins.
        starts: int32 [PART / block, 32], what sums of a block begin with.
        scales: float32 [PART / block, 32].
        zeros: float32 [PART / block, 32], (middle - zero) scale; None where bytes hold the zeros.
    """

    values: tuple[Buffer, Expr]
    starts: Buffer
    scales: Buffer
    zeros: Buffer | None


@dataclass(frozen=True)
class Rows:
    """Rows, or a part of them.

    Args:
        values: uint8 [rows, pitch], 128 added, and where it begins.
        scales: float32 [rows, blocks].
        sums: float32 [rows, blocks], of the rounded rows' blocks; None where bytes hold the zeros.
        pitch: Bytes from a row to the next.
        blocks: Of a row.
    """

    values: tuple[Buffer, Expr]
    scales: Buffer
    sums: Buffer | None
    pitch: int
    blocks: int


def part_of(of: Blocks) -> int:
    """Return the elements of the depth of a part: whole blocks."""
    return max(of.block, PART // of.block * of.block)


def _has_wide_zeros(of: Blocks) -> bool:
    """Say whether a weight less its zero may exceed int8."""
    return of.bits == 8 and of.zero is not None


def panel_for(e: NBitsEmitter, of: Blocks) -> Panel:
    """Declare room for a part of a panel."""
    blocks = part_of(of) // of.block * PAIRS
    values = e.aligned(PAIRS * part_of(of), "uint8")
    zeros = e.local(blocks, "float32") if _has_wide_zeros(of) else None
    return Panel(values, e.local(blocks, "int32"), e.local(blocks, "float32"), zeros)


def rows_for(e: NBitsEmitter, of: Blocks, count: int, blocks: int) -> Rows:
    """Declare room for some blocks of rows.

    Rows begin at different lines of a page: those of a tile would else push each other out of the
    first cache.
    """
    pitch = blocks * of.block + BYTES
    scales = e.local(count * blocks, "float32")
    sums = e.local(count * blocks, "float32") if _has_wide_zeros(of) else None
    return Rows(e.aligned(count * pitch, "uint8"), scales, sums, pitch, blocks)


def round_rows(
    e: NBitsEmitter,
    of: Blocks,
    source: tuple[Buffer, Expr, Expr],
    blocks: tuple[Expr, Expr],
    sink: Rows,
) -> None:
    """Emit blocks of rows in int8.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        source: float32, the first row, and how many there are.
        blocks: The first block, and how many there are.
        sink: Where to.
    """
    (buffer, top, count), (first, length) = source, blocks
    with e.loop(count) as row:
        start = e.share((top + row) * e.i64(of.depth) + first * e.i64(of.block))
        to = e.share(sink.values[1] + row * e.i64(sink.pitch))
        with e.loop(length) as block:
            at = e.share(block * e.i64(of.block))
            target = sink.values[0], e.share(to + at)
            here, order = (buffer, e.share(start + at)), ORDER if of.bits == 4 else None
            for line in range(0, of.block, VECTOR):  # of the next row
                e.prefetch(buffer, start + at + e.i64(of.depth + line), NEAREST)
            scale, total = quantize_block(e, here, of.block, target, _OFFSET, order)
            offset = row * e.i64(sink.blocks) + block
            e.store(sink.scales, scale, offset)
            if sink.sums is not None:
                e.store(sink.sums, scale * e.cast(e.sum_int(total), "float32"), offset)


def unpack_panel(
    e: NBitsEmitter,
    of: Blocks,
    columns: tuple[Expr, int],
    blocks: tuple[Expr, Expr],
    sink: Panel,
) -> None:
    """Emit blocks of a panel's columns as int8.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        columns: The first, and how many: 16 or 32.
        blocks: The first block, and how many there are.
        sink: Where to.
    """
    (column, width), (first, length) = columns, blocks
    together = _blocks_together(of)
    with e.loop(e.divide_down(length, together)) as number:
        block = e.share(number * e.i64(together))
        for vector in range(width // VECTOR):
            start = e.share(column + e.i64(vector * VECTOR))
            _unpack_blocks(e, of, (start, e.share(first + block)), (vector, block), sink)


def _blocks_together(of: Blocks) -> int:
    """Return how many blocks make up 64 elements, if all of the depth is cut so."""
    return 1 if of.depth % BYTES else max(1, BYTES // of.block)


def _unpack_blocks(
    e: NBitsEmitter, of: Blocks, at: tuple[Expr, Expr], to: tuple[int, Expr], sink: Panel
) -> None:
    """Emit some blocks of 16 columns, up to 64 elements of each column at once."""
    (column, first), (vector, number) = at, to
    together = _blocks_together(of)
    span = min(BYTES, of.block * together)
    begin = sink.values[1] + e.i64(vector * VECTOR * part_of(of))
    begin = e.share(begin + number * e.i64(of.block * VECTOR))
    offset = e.share(number * e.i64(PAIRS) + e.i64(vector * VECTOR))
    zeros = e.local(VECTOR * together, "uint32")
    with e.loop(e.i64(VECTOR)) as lane:
        for index in range(together):
            block = e.share(first + e.i64(index))
            of_column = e.share(column + lane)
            scale = of.scale[of_column * e.i64(of.count) + block]
            e.store(sink.scales, scale, offset + e.i64(index * PAIRS) + lane)
            if sink.zeros is not None:
                moved = (e.f32(of.middle) - of.zero_at(e, of_column, block)) * scale
                e.store(sink.zeros, moved, offset + e.i64(index * PAIRS) + lane)
            elif of.zero is not None:
                zero = e.cast(of.zero_at(e, of_column, block), "uint32")
                each = zero * e.constant(_EACH_BYTE, "uint32")
                e.store(zeros, each, e.i64(index * VECTOR) + lane)
    totals = [e.local(VECTOR, "int32") for _ in range(together)]
    for total in totals:
        e.store_row(total, e.tir.Broadcast(e.i32(0), VECTOR), 0, VECTOR)
    most = e.everywhere(e.constant(_OFFSET * _EACH_BYTE, "uint32"))
    zero_bytes = [_zeros_of(e, of, zeros, index) for index in range(together)]
    with e.loop(e.i64(of.block * together // span)) as step:
        weight = column * e.i64(of.depth) + first * e.i64(of.block) + step * e.i64(span)
        groups = span // _GROUP
        for group, value in enumerate(_groups_of(e, of, e.share(weight), span)[:groups]):
            index = group * together // groups
            value = e.share_bytes(e.less(value, zero_bytes[index]))
            at_group = (step * e.i64(groups) + e.i64(group)) * e.i64(BYTES)
            e.put_bytes(sink.values[0], begin + at_group, value)
            total = totals[index]
            e.store_row(total, e.dot4(e.row(total, 0, VECTOR), most, value), 0, VECTOR)
    for index, total in enumerate(totals):
        start = e.tir.Broadcast(e.i32(0), VECTOR) - e.row(total, 0, VECTOR)
        e.put(sink.starts, offset + e.i64(index * PAIRS), start, VECTOR)


def _zeros_of(e: NBitsEmitter, of: Blocks, zeros: Buffer, index: int) -> Expr:
    """Return the zeros of a block of 16 columns, each as often as a group has elements."""
    if of.zero is None or _has_wide_zeros(of):
        return e.everywhere(e.constant(int(of.middle) * _EACH_BYTE, "uint32"))
    return e.share_bytes(e.tir.reinterpret("uint8x64", e.row(zeros, index * VECTOR, VECTOR)))


def _groups_of(e: NBitsEmitter, of: Blocks, weight: Expr, span: int) -> list[Expr]:
    """Return up to 64 weights of 16 columns: four of each column at a time, as bytes.

    Weights of 4 bits come in the order of `ORDER`.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        weight: The first one of the first column.
        span: How many of each column there are; what follows them is not used.
    """
    lines = []
    for lane in range(VECTOR):
        at = e.share(weight + e.i64(lane * of.depth))
        # What lies there in the next panel: its columns are no neighbours.
        later = at + e.i64(PAIRS * of.depth)
        e.prefetch(of.weight, later if of.bits == 8 else e.divide_down(later, 2))
        if of.bits == 8:
            whole = span == BYTES
            found = e.sixty_four(of.weight, at) if whole else e.padded(of.weight, at, span, BYTES)
            lines.append(e.share_row(e.tir.reinterpret("float32x16", found), VECTOR, "float32"))
            continue
        byte = e.share(e.divide_down(at, 2))
        whole = span == BYTES
        found = (
            e.thirty_two(of.weight, byte) if whole else e.padded(of.weight, byte, span // 2, PAIRS)
        )
        lines.append(e.tir.reinterpret("float32x8", found))
    if of.bits == 8:
        return [e.tir.reinterpret("uint8x64", row) for row in transposed(e, lines)]
    half = VECTOR // 2
    pairs = [
        e.share_row(e.shuffled(lines[n], lines[n + half], range(VECTOR)), VECTOR, "float32")
        for n in range(half)
    ]
    groups = []
    for row in transposed(e, pairs):
        four = e.share_bytes(e.tir.reinterpret("uint8x64", row))
        groups += [e.low_nibbles(four), e.high_nibbles(four)]
    return groups


def sum_tiles(
    e: NBitsEmitter,
    of: Blocks,
    operands: tuple[Rows, Panel],
    blocks: tuple[Expr, Expr, Expr],
    sums: tuple[Buffer, Expr],
    shape: tuple[TileShape, Expr, int],
) -> None:
    """Emit the sums of rows and a part of a panel.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        operands: The rows and the panel.
        blocks: The first block of the rows, how many blocks the part has, and whether the sums
            begin with it.
        sums: float32 [rows, 32], and where they begin.
        shape: The tile, how many rows there are, and columns: 16 or 32.
    """
    tile, count, width = shape
    together = min(tile.vectors, width // VECTOR)
    firsts = range(0, width // VECTOR, together)

    def rows_from(top: Expr, height: int) -> None:
        part = replace(tile, rows=height, vectors=together)
        for first in firsts:
            _tile(e, of, operands, blocks, sums, (top, part, first))

    whole = e.share(e.divide_down(count, tile.rows))
    with e.loop(whole) as number:
        rows_from(e.share(number * e.i64(tile.rows)), tile.rows)
    rest = e.share(whole * e.i64(tile.rows))
    left, height = e.share(count - rest), 1 << (tile.rows - 1).bit_length() - 1
    while height:
        here = e.share(rest)
        with e.block() as some:
            rows_from(here, height)
        has = e.share(e.tir.bitwise_and(left, e.i64(height)))
        e.when(e.not_equal(has, e.i64(0)), some)
        rest, height = e.share(rest + has), height // 2


def _tile(
    e: NBitsEmitter,
    of: Blocks,
    operands: tuple[Rows, Panel],
    blocks: tuple[Expr, Expr, Expr],
    sums: tuple[Buffer, Expr],
    at: tuple[Expr, TileShape, int],
) -> None:
    """Emit the sums of a tile: rows from a row on, vectors from a vector on."""
    (rows, panel), (skipped, length, is_new), (top, shape, first) = operands, blocks, at
    height, vectors = shape.rows, shape.vectors
    part = part_of(of)
    # One register addresses all sums, and one all rows: the rest are constants.
    corner = e.share(sums[1] + top * e.i64(PAIRS) + e.i64(first * VECTOR))
    offsets = [
        [corner + e.i64(row * PAIRS + v * VECTOR) for v in range(vectors)] for row in range(height)
    ]
    sums_of_rows = [[e.scratch() for _ in row] for row in offsets if shape.holds_sums]
    with e.block() as begin:
        for offset in (item for row in offsets for item in row if not sums_of_rows):
            e.put(sums[0], offset, e.tir.Broadcast(e.f32(0.0), VECTOR), VECTOR)
        for sum_ in (one for row in sums_of_rows for one in row):
            e.store_row(sum_, e.alone(e.tir.Broadcast(e.f32(0.0), VECTOR)), 0, VECTOR)
    with e.block() as go_on:
        for row, each in zip(offsets, sums_of_rows, strict=False):
            for offset, sum_ in zip(row, each, strict=True):
                e.store_row(sum_, e.alone(e.part(sums[0], offset, VECTOR)), 0, VECTOR)
    if sums_of_rows:
        e.branch(is_new, begin, go_on)
    else:
        e.when(is_new, begin)
    start = rows.values[1] + top * e.i64(rows.pitch) + skipped * e.i64(of.block)
    start = e.share(start)
    totals = [[e.local(VECTOR, "int32") for _ in range(vectors)] for _ in range(height)]
    span = min(of.block, _SPAN)
    parts = of.block // span
    with e.loop(length * e.i64(parts)) as step:
        block = e.share(e.divide_down(step, parts))
        is_first = e.equal(step, block * e.i64(parts))
        line = e.share(block * e.i64(PAIRS) + e.i64(first * VECTOR))
        for v in range(vectors):
            begin_with = e.part(panel.starts, line + e.i64(v * VECTOR), VECTOR)
            if parts > 1:
                once = e.share(e.select(is_first, e.i32(1), e.i32(0)))
                begin_with = begin_with * e.tir.Broadcast(once, VECTOR)
            begin_with = e.share_row(begin_with, VECTOR, "int32")
            for row in totals:
                e.store_row(row[v], begin_with, 0, VECTOR)
        depth = e.share(step * e.i64(span))
        for group in range(span // _GROUP):
            at_group = depth + e.i64(group * _GROUP)
            weights = [
                e.share_bytes(
                    e.sixty_four(
                        panel.values[0],
                        panel.values[1]
                        + e.i64((first + v) * VECTOR * part)
                        + at_group * e.i64(VECTOR),
                    )
                )
                for v in range(vectors)
            ]
            for number, row in enumerate(totals):
                at = start + at_group + e.i64(number * rows.pitch)
                four = e.part(rows.values[0], at, _GROUP)
                a = e.share_bytes(e.everywhere(e.tir.reinterpret("uint32", four)))
                for total, weight in zip(row, weights, strict=True):
                    e.store_row(total, e.dot4(e.row(total, 0, VECTOR), a, weight), 0, VECTOR)
        scales = [
            e.share_row(e.part(panel.scales, line + e.i64(v * VECTOR), VECTOR), VECTOR, "float32")
            for v in range(vectors)
        ]
        zeros = (
            []
            if panel.zeros is None
            else [
                e.share_row(
                    e.part(panel.zeros, line + e.i64(v * VECTOR), VECTOR), VECTOR, "float32"
                )
                for v in range(vectors)
            ]
        )
        of_rows = e.share(top * e.i64(rows.blocks) + skipped + block)
        for number, row in enumerate(totals):
            scale = rows.scales[of_rows + e.i64(number * rows.blocks)]
            factor = e.tir.Broadcast(e.share(scale), VECTOR)
            if rows.sums is not None:  # weights of 8 bits, with VNNI only: sums are held
                found = rows.sums[of_rows + e.i64(number * rows.blocks)]
                found = e.select(is_first, found, e.f32(0.0)) if parts > 1 else found
                of_row = e.tir.Broadcast(e.share(found), VECTOR)
                for sum_, zero in zip(sums_of_rows[number], zeros, strict=True):
                    e.store_row(sum_, e.row(sum_, 0, VECTOR) + zero * of_row, 0, VECTOR)
            for v, total in enumerate(row):
                whole = e.cast(e.row(total, 0, VECTOR), "float32x16")
                if sums_of_rows:
                    sum_ = sums_of_rows[number][v]
                    added = e.row(sum_, 0, VECTOR) + whole * (scales[v] * factor)
                    e.store_row(sum_, e.alone(added), 0, VECTOR)
                else:
                    e.accumulate(sums[0], offsets[number][v], whole, scales[v] * factor)
    for row, each in zip(offsets, sums_of_rows, strict=False):
        for offset, sum_ in zip(row, each, strict=True):
            e.put(sums[0], offset, e.row(sum_, 0, VECTOR), VECTOR)

"""Weights as MatMulNBits has them: in registers as float32, or as panels of bfloat16.

A step is 32 weights of one column, along the depth. In 4 bits it is 16 bytes, the first of two
weights in the low half of each; in 8 bits it is 32. A number q stands for (q - zero) scale, with a
scale and a zero for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ortkit.kernels.tvm.emit import NEAREST

from ...forms.gemm_nbits import STEP
from ..tile.registers import VECTOR
from .bf16_emitter import PAIRS, TILE, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# How far ahead the product of a small M asks for weights and scales, in bytes: a page.
_AHEAD = 4096
_SCALES_AHEAD = 1024
_LINE = 64
#: Steps that become bfloat16 at once, at most.
PART_STEPS = 16


@dataclass(frozen=True)
class Blocks:
    """Where the weights of a column are.

    Args:
        weight: uint8 [columns, depth bits / 8].
        scale: float32 [columns, depth / block].
        zero: uint8, the blocks' of each column, from a byte on; None if all are half of the range.
        depth: K, a multiple of 32 and of `block`.
        block: Weights with one scale, a multiple of 32.
        bits: Of a weight, 4 or 8.
    """

    weight: Buffer
    scale: Buffer
    zero: Buffer | None
    depth: int
    block: int
    bits: int

    @property
    def count(self) -> int:
        """How many blocks a column has."""
        return self.depth // self.block

    @property
    def block_steps(self) -> int:
        """How many steps of 32 weights a block has."""
        return self.block // STEP

    @property
    def steps(self) -> int:
        """How many steps of 32 weights a column has."""
        return self.depth // STEP

    @property
    def step_bytes(self) -> int:
        """The bytes of a step."""
        return STEP * self.bits // 8

    @property
    def is_spread(self) -> bool:
        """Whether of a step the even weights come first, and then the odd ones."""
        return self.bits == 4

    def byte(self, e: Bf16Emitter, column: Expr, step: Expr) -> Expr:
        """Return the byte at which a step begins."""
        return (column * e.i64(self.steps) + step) * e.i64(self.step_bytes)

    def bytes_at(self, e: Bf16Emitter, column: Expr, step: Expr, first: int = 0) -> Expr:
        """Return 16 bytes of a step as uint32."""
        at = self.byte(e, column, step) + e.i64(first)
        numbers = e.cast(e.part(self.weight, at, VECTOR), f"uint32x{VECTOR}")
        return e.share_row(numbers, VECTOR, "uint32")

    def block_of(self, e: Bf16Emitter, step: Expr) -> Expr:
        """Return the block that a step belongs to."""
        return e.divide_down(step * e.i64(STEP), self.block)

    @property
    def middle(self) -> float:
        """The zero of weights that are given none."""
        return 2.0 ** (self.bits - 1)

    def zero_at(self, e: Bf16Emitter, column: Expr, block: Expr) -> Expr:
        """Return a block's zero, float32."""
        if self.zero is None:
            return e.f32(self.middle)
        if self.bits == 8:
            return e.cast(self.zero[column * e.i64(self.count) + block], "float32")
        offset = column * e.i64(-(-self.count // 2)) + e.divide_down(block, 2)
        shift = e.cast(e.tir.bitwise_and(block, e.i64(1)), "uint8") * e.u8(4)
        return e.cast(e.tir.bitwise_and(self.zero[offset] >> shift, e.u8(15)), "float32")

    def scale_at(self, e: Bf16Emitter, column: Expr, block: Expr) -> Expr:
        """Return a block's scale in all lanes."""
        scale = e.tir.Broadcast(self.scale[column * e.i64(self.count) + block], VECTOR)
        return e.share_row(scale, VECTOR, "float32")

    def zeros_at(self, e: Bf16Emitter, column: Expr, block: Expr) -> Expr:
        """Return the zeros of 16 blocks from an even one on, float32."""
        if self.bits == 8:
            found = e.part(self.zero, column * e.i64(self.count) + block, VECTOR)
            return e.cast(found, f"float32x{VECTOR}")
        at = column * e.i64(-(-self.count // 2)) + e.divide_down(block, 2)
        pairs = e.share_row(e.part(self.zero, at, VECTOR // 2), VECTOR // 2, "uint8")
        twice = e.shuffled(pairs, pairs, [lane // 2 for lane in range(VECTOR)])
        odd = e.tir.bitwise_and(
            e.tir.Ramp(e.i32(0), e.i32(1), VECTOR), e.tir.Broadcast(e.i32(1), VECTOR)
        )
        shifted = e.cast(twice, f"int32x{VECTOR}") >> (odd * e.tir.Broadcast(e.i32(4), VECTOR))
        numbers = e.tir.bitwise_and(shifted, e.tir.Broadcast(e.i32(15), VECTOR))
        return e.cast(numbers, f"float32x{VECTOR}")

    def halves(self, e: Bf16Emitter, column: Expr, step: Expr, zero: Expr) -> tuple[Expr, Expr]:
        """Return 16 and 16 weights of a step without their scale, float32; see `is_spread`.

        Args:
            e: The emitter that writes the statements.
            column: The column.
            step: The step.
            zero: Float32.
        """
        zeros = e.tir.Broadcast(zero, VECTOR)
        if self.bits == 8:
            parts = (self.bytes_at(e, column, step, first) for first in (0, VECTOR))
            low, high = (e.cast(part, f"float32x{VECTOR}") - zeros for part in parts)
        else:
            numbers = self.bytes_at(e, column, step)
            four = e.tir.Broadcast(e.constant(4, "uint32"), VECTOR)
            table = e.share_row(_range(e) - zeros, VECTOR, "float32")
            low, high = (_lookup(e, table, each) for each in (numbers, numbers >> four))
        return e.share_row(low, VECTOR, "float32"), e.share_row(high, VECTOR, "float32")


def _range(e: Bf16Emitter) -> Expr:
    """Return the numbers 0 to 15 as float32."""
    return e.cast(e.tir.Ramp(e.i32(0), e.i32(1), VECTOR), f"float32x{VECTOR}")


def _lookup(e: Bf16Emitter, table: Expr, numbers: Expr) -> Expr:
    """Return what the low 4 bits of 16 numbers stand for."""
    name = "llvm.x86.avx512.permvar.sf.512"
    indices = e.tir.reinterpret(f"int32x{VECTOR}", numbers)
    return e.tir.call_llvm_pure_intrin(f"float32x{VECTOR}", name, table, indices)


@dataclass(frozen=True)
class Rows:
    """A few rows as `dot_column` reads them.

    Args:
        values: float32, in the order of `Blocks.halves`, one row after the other.
        begin: The element that the first row begins at.
        sums: float32 [rows, blocks], the sums of each row's blocks; None if they are not needed.
    """

    values: Buffer
    begin: Expr
    sums: Buffer | None


def rows_for(e: Bf16Emitter, of: Blocks, count: int) -> Rows:
    """Declare room for rows."""
    values, begin = e.aligned(count * of.depth, "float32")
    sums = None if of.zero is None else e.local(count * of.count, "float32")
    return Rows(values, begin, sums)


def copy_row(
    e: Bf16Emitter, of: Blocks, source: tuple[Buffer, Expr], rows: Rows, number: int
) -> None:
    """Emit a copy of a row.

    Args:
        e: The emitter that writes the statements.
        of: The weights that it is multiplied by.
        source: float32, and the element that the row begins at.
        rows: Where to.
        number: Which of them.
    """
    buffer, start = source
    total = e.scratch()
    with e.loop(e.i64(of.count)) as block:
        e.store_row(total, e.tir.Broadcast(e.f32(0.0), VECTOR), 0, VECTOR)
        with e.loop(e.i64(of.block_steps)) as inner:
            at = e.share((block * e.i64(of.block_steps) + inner) * e.i64(STEP))
            low, high = (
                e.share_row(e.part(buffer, start + at + e.i64(half), VECTOR), VECTOR, "float32")
                for half in (0, VECTOR)
            )
            to = e.share(rows.begin + e.i64(number * of.depth) + at)
            for half, plain in enumerate((low, high)):
                spread = e.shuffled(low, high, range(half, STEP, 2))
                values = spread if of.is_spread else plain
                e.put(rows.values, to + e.i64(half * VECTOR), values, VECTOR)
            e.store_row(total, e.row(total, 0, VECTOR) + (low + high), 0, VECTOR)
        if rows.sums is not None:
            e.store(rows.sums, e.sum_of(total), e.i64(number * of.count) + block)


def dot_column(e: Bf16Emitter, of: Blocks, rows: Rows, count: int, column: Expr) -> list[Expr]:
    """Emit the products of a few rows and a column.

    Weights are looked up in one table, as if all zeros were the middle. What other zeros add is
    (middle - zero) times the sum of a block's a.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        rows: The rows.
        count: How many there are.
        column: The column.

    Returns:
        For each row a vector whose numbers add up to the product.
    """
    # Blocks that do not wait for each other.
    together = min(max(1, (4 if count == 1 else 2) // of.block_steps), of.count)
    totals = [[e.scratch() for _ in range(count)] for _ in range(together)]
    for total in (item for block in totals for item in block):
        e.store_row(total, e.tir.Broadcast(e.f32(0.0), VECTOR), 0, VECTOR)
    with e.loop(e.i64(of.count // together)) as turn:
        first = e.share(turn * e.i64(together))
        byte = of.byte(e, column, first * e.i64(of.block_steps))
        for line in range(0, together * of.block_steps * of.step_bytes, _LINE):
            e.prefetch(of.weight, byte + e.i64(_AHEAD + line), NEAREST)
        scale = column * e.i64(of.count) + first
        e.prefetch(of.scale, scale + e.i64(_SCALES_AHEAD // 4), NEAREST)
        for number, each in enumerate(totals):
            _dot_block(e, of, rows, (column, e.share(first + e.i64(number))), each)
    for left in range(of.count // together * together, of.count):
        _dot_block(e, of, rows, (column, e.i64(left)), totals[0])
    if rows.sums is not None:
        add_zeros(e, of, rows.sums, column, totals[0])
    found = [[e.row(total, 0, VECTOR) for total in block] for block in totals]
    return [reduce(lambda a, b: a + b, of_row) for of_row in zip(*found, strict=True)]


def add_zeros(
    e: Bf16Emitter, of: Blocks, sums: Buffer, column: Expr, totals: Sequence[Buffer]
) -> None:
    """Emit what zeros other than the middle add to the products of rows."""
    scales = column * e.i64(of.count)
    whole = of.count // VECTOR * VECTOR
    with e.loop(e.i64(whole // VECTOR)) as number:
        block = e.share(number * e.i64(VECTOR))
        moved = e.tir.Broadcast(e.f32(of.middle), VECTOR) - of.zeros_at(e, column, block)
        moved = e.share_row(moved * e.part(of.scale, scales + block, VECTOR), VECTOR, "float32")
        for row, total in enumerate(totals):
            part = e.part(sums, e.i64(row * of.count) + block, VECTOR)
            e.store_row(total, e.row(total, 0, VECTOR) + moved * part, 0, VECTOR)
    for left in range(whole, of.count):
        block = e.i64(left)
        moved = e.f32(of.middle) - of.zero_at(e, column, block)
        moved = e.share(moved * of.scale[scales + block])
        for row, total in enumerate(totals):
            added = total[e.i64(0)] + moved * sums[e.i64(row * of.count) + block]
            e.store(total, added, e.i64(0))


def _dot_block(
    e: Bf16Emitter,
    of: Blocks,
    rows: Rows,
    at: tuple[Expr, Expr],
    totals: Sequence[Buffer],
) -> None:
    column, block = at
    sums = [e.scratch() for _ in totals]
    for number in range(of.block_steps):
        step = e.share(block * e.i64(of.block_steps) + e.i64(number))
        low, high = of.halves(e, column, step, e.f32(of.middle))
        for row, total in enumerate(sums):
            offset = e.share(rows.begin + e.i64(row * of.depth) + step * e.i64(STEP))
            first, second = (e.part(rows.values, offset + e.i64(n), VECTOR) for n in (0, VECTOR))
            products = low * first + high * second
            if number:
                products = e.row(total, 0, VECTOR) + low * first + high * second
            e.store_row(total, products, 0, VECTOR)
    scale = of.scale_at(e, column, block)
    for total, part in zip(totals, sums, strict=True):
        e.store_row(total, e.row(total, 0, VECTOR) + e.row(part, 0, VECTOR) * scale, 0, VECTOR)


def round_column(
    e: Bf16Emitter, of: Blocks, column: Expr, steps: tuple[Expr, Expr], sink: tuple[Buffer, Expr]
) -> None:
    """Emit some steps of a column as bfloat16.

    Args:
        e: The emitter that writes the statements.
        of: The weights.
        column: The column.
        steps: The first step, and how many.
        sink: bfloat16 as uint16, and the element to begin at.
    """
    first, count = steps
    buffer, start = sink
    later = column + e.i64(PAIRS)  # in the next panel
    for line in range(0, PART_STEPS * of.step_bytes, _LINE):
        e.prefetch(of.weight, of.byte(e, later, first) + e.i64(line))
    e.prefetch(of.scale, later * e.i64(of.count) + of.block_of(e, first))
    with e.loop(count) as number:
        step = e.share(first + number)
        rounded = _rounded_nibbles if of.bits == 4 else _rounded_bytes
        e.put(buffer, start + number * e.i64(STEP), rounded(e, of, column, step), PAIRS)


def _rounded_bytes(e: Bf16Emitter, of: Blocks, column: Expr, step: Expr) -> Expr:
    """Return a step of 8-bit weights as bfloat16."""
    block = e.share(of.block_of(e, step))
    scale = of.scale_at(e, column, block)
    low, high = of.halves(e, column, step, of.zero_at(e, column, block))
    return e.rounded_pair(low * scale, high * scale)


def _rounded_nibbles(e: Bf16Emitter, of: Blocks, column: Expr, step: Expr) -> Expr:
    """Return a step of 4-bit weights as bfloat16, by a table of the 16 that its block can have."""
    block = e.share(of.block_of(e, step))
    zeros = e.tir.Broadcast(of.zero_at(e, column, block), VECTOR)
    table = e.rounded_one((_range(e) - zeros) * of.scale_at(e, column, block))
    table = e.share_row(table, TILE, "uint16")
    # Indices have 5 bits: the lowest of the next weight, too.
    twice = e.shuffled(table, table, range(PAIRS))
    numbers = of.bytes_at(e, column, step)
    twelve = e.tir.Broadcast(e.constant(12, "uint32"), VECTOR)
    indices = e.tir.bitwise_or(numbers, numbers << twelve)
    signed = f"int16x{PAIRS}"
    found = e.tir.call_llvm_pure_intrin(
        signed,
        "llvm.x86.avx512.permvar.hi.512",
        e.tir.reinterpret(signed, twice),
        e.tir.reinterpret(signed, indices),
    )
    return e.tir.reinterpret(f"uint16x{PAIRS}", found)

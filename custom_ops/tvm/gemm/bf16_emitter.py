"""The emitter with the instructions for bfloat16: tiles, dot products of pairs, conversions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..tile.emitter import TileEmitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Rows of a tile, and columns of float32 in one.
TILE = 16
#: Elements of bfloat16 in a row of a tile, and in a vector.
PAIRS = 32

#: The sum of a vector, in any order.
SUM = """
declare float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)
define internal float @ortkit_sum(<16 x float> %x) alwaysinline {
  %result = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0.0, <16 x float> %x)
  ret float %result
}
"""
# TVM 0.27 has bfloat16 in its own types only, so LLVM is handed functions whose vectors of it are
# called uint16.
_FUNCTIONS = """
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal <32 x i16> @ortkit_round(<16 x float> %low, <16 x float> %high) alwaysinline {
  %pairs = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %high, <16 x float> %low)
  %bits = bitcast <32 x bfloat> %pairs to <32 x i16>
  ret <32 x i16> %bits
}
define internal <16 x i16> @ortkit_round_one(<16 x float> %x) alwaysinline {
  %narrow = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %bits = bitcast <16 x bfloat> %narrow to <16 x i16>
  ret <16 x i16> %bits
}
define internal <16 x float> @ortkit_dot(<16 x float> %sum, <32 x i16> %a, <32 x i16> %b) alwaysinline {
  %x = bitcast <32 x i16> %a to <32 x bfloat>
  %y = bitcast <32 x i16> %b to <32 x bfloat>
  %new = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %new
}
"""  # noqa: E501


@dataclass
class Bf16Emitter(TileEmitter):
    """One kernel for a level with instructions for bfloat16, whose tensors lie as uint16."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        return (SUM, _FUNCTIONS)

    # ---- vectors, outside of vector loops
    def part(self, buffer: Buffer, start: Expr, count: int) -> Expr:
        """Return `count` elements as one vector, one as a number."""
        if count == 1:
            return buffer[start]
        return self.tir.BufferLoad(buffer, [self.tir.Ramp(start, self.i64(1), count)])

    def put(self, buffer: Buffer, start: Expr, value: Expr, count: int) -> None:
        """Write `count` elements that are one vector, or one number."""
        self.store(
            buffer, value, start if count == 1 else self.tir.Ramp(start, self.i64(1), count)
        )

    def rounded_pair(self, low: Expr, high: Expr) -> Expr:
        """Return 32 bfloat16, as uint16, of two vectors of 16 float32: nearest, halves to even.

        As in all instructions for bfloat16, what is too small for a normal number is 0.
        """
        return self.tir.call_extern("uint16x32", "ortkit_round", low, high)

    def rounded_one(self, values: Expr) -> Expr:
        """Return 16 bfloat16, as uint16, of a vector of 16 float32; see `rounded_pair`."""
        return self.tir.call_extern("uint16x16", "ortkit_round_one", values)

    def dot(self, total: Expr, a: Expr, b: Expr) -> Expr:
        """Return total + a b of each of 16 neighbouring pairs, given as uint16."""
        return self.tir.call_extern("float32x16", "ortkit_dot", total, a, b)

    def sum_of(self, vector: Buffer) -> Expr:
        """Return the sum of 16 float32 on the stack, in any order."""
        whole = self.row(vector, 0, TILE)
        return self.share(self.tir.call_extern("float32", "ortkit_sum", whole))

    def pair(self, buffer: Buffer, start: Expr) -> Expr:
        """Return a vector of one pair of bfloat16, 16 times."""
        reinterpret = self.tir.reinterpret("uint32", self.part(buffer, start, 2))
        return self.tir.reinterpret("uint16x32", self.tir.Broadcast(reinterpret, TILE))

    # ---- tiles
    def shape_tiles(self, shapes: Sequence[tuple[Expr, int]]) -> None:
        """Set the tiles 0, 1 ...: their rows, 1 to 16, and bytes of a row. They become zero."""
        words = self.local(8, "uint64")
        rows = [self.constant(0, "uint64")] * 8
        sizes = [self.constant(0, "uint64")] * 8
        for tile, (count, size) in enumerate(shapes):
            rows[tile] = self.cast(count, "uint64")
            sizes[tile] = self.constant(size, "uint64")

        def word(parts: Sequence[Expr], bits: int) -> Expr:
            result = parts[0]
            for number, part in enumerate(parts[1:], 1):
                result = result | (part << self.constant(number * bits, "uint64"))
            return result

        zero = self.constant(0, "uint64")
        # Intel SDM, LDTILECFG: the palette, 15 bytes, 16 sizes of 2 bytes, 16 rows of 1 byte.
        values = [self.constant(1, "uint64"), zero, word(sizes[:4], 16), word(sizes[4:], 16)]
        values += [zero, zero, word(rows, 8), zero]
        for index, value in enumerate(values):
            self.store(words, value, self.i64(index))
        self._tile("ldtilecfg", self.tir.address_of(words[self.i64(0)]))

    def release_tiles(self) -> None:
        """Give the tiles back, so that the system need not save them."""
        self._tile("tilerelease")

    def clear_tile(self, tile: int) -> None:
        """Set a tile to zero."""
        self._tile("tilezero", self._number(tile))

    def load_tile(self, tile: int, buffer: Buffer, start: Expr, stride: Expr) -> None:
        """Read a tile whose rows begin `stride` bytes apart."""
        address = self.tir.address_of(buffer[start])
        self._tile("tileloadd64", self._number(tile), address, stride)

    def store_tile(self, tile: int, buffer: Buffer, start: Expr, stride: Expr) -> None:
        """Write a tile whose rows begin `stride` bytes apart."""
        address = self.tir.address_of(buffer[start])
        self._tile("tilestored64", self._number(tile), address, stride)

    def multiply_tiles(self, total: int, a: int, b: int) -> None:
        """Add the product of two tiles of bfloat16 to one of float32."""
        self._tile("tdpbf16ps", *map(self._number, (total, a, b)))

    def multiply_byte_tiles(self, total: int, a: int, b: int, *, is_signed: bool = False) -> None:
        """Add the exact product of two tiles of bytes to one of int32.

        Args:
            total: The tile of sums.
            a: Rows of up to 64 bytes; its tile has as many bytes a row as four times the rows of
                `b`.
            b: Rows of 16 groups of four int8: neighbours along K of a column lie together.
            is_signed: Whether `a` is int8 too, else uint8.
        """
        name = "tdpbssd" if is_signed else "tdpbusd"
        self._tile(name, *map(self._number, (total, a, b)))

    def _number(self, tile: int) -> Expr:
        return self.constant(tile, "int8")

    def _tile(self, name: str, *arguments: Expr) -> None:
        call = self.tir.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments)
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

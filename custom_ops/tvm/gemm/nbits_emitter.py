"""The emitter with what int8 matrix products need: sums of four products, nibbles, rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.targets.cpu import has_bf16, has_vnni

from ..tile.registers import VECTOR
from .bf16_emitter import SUM, Bf16Emitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

#: Bytes of a vector.
BYTES = 64
_WORDS = BYTES // 2

# total + a b of 16 groups of four bytes, of which those of `a` are unsigned: with VNNI; with
# AVX-512, and with AVX2, whose instruction saturates sums of two products at 16 bits.
_VNNI = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
define internal <16 x i32> @ortkit_dot4(<16 x i32> %sum, <64 x i8> %a, <64 x i8> %b) alwaysinline {
  %x = bitcast <64 x i8> %a to <16 x i32>
  %y = bitcast <64 x i8> %b to <16 x i32>
  %new = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %sum, <16 x i32> %x, <16 x i32> %y)
  ret <16 x i32> %new
}
"""  # noqa: E501
_AVX512 = """
declare <32 x i16> @llvm.x86.avx512.pmaddubs.w.512(<64 x i8>, <64 x i8>)
declare <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16>, <32 x i16>)
define internal <16 x i32> @ortkit_dot4(<16 x i32> %sum, <64 x i8> %a, <64 x i8> %b) alwaysinline {
  %pairs = call <32 x i16> @llvm.x86.avx512.pmaddubs.w.512(<64 x i8> %a, <64 x i8> %b)
  %fours = call <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16> %pairs, <32 x i16> splat (i16 1))
  %new = add <16 x i32> %sum, %fours
  ret <16 x i32> %new
}
"""  # noqa: E501


def _numbers(first: int, count: int, step: int = 1) -> str:
    lanes = ", ".join(f"i32 {first + step * lane}" for lane in range(count))
    return f"<{count} x i32> <{lanes}>"


def _avx2_half(number: int) -> str:
    lanes = _numbers(number * _WORDS, _WORDS)
    return f"""
  %a{number} = shufflevector <64 x i8> %a, <64 x i8> poison, {lanes}
  %b{number} = shufflevector <64 x i8> %b, <64 x i8> poison, {lanes}
  %p{number} = call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> %a{number}, <32 x i8> %b{number})
  %f{number} = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %p{number}, <16 x i16> splat (i16 1))"""  # noqa: E501


_AVX2 = f"""
declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
define internal <16 x i32> @ortkit_dot4(<16 x i32> %sum, <64 x i8> %a, <64 x i8> %b) alwaysinline {{
{_avx2_half(0)}{_avx2_half(1)}
  %fours = shufflevector <8 x i32> %f0, <8 x i32> %f1, {_numbers(0, VECTOR)}
  %new = add <16 x i32> %sum, %fours
  ret <16 x i32> %new
}}
"""  # noqa: E501

_FUNCTIONS = f"""
declare i32 @llvm.vector.reduce.smax.v16i32(<16 x i32>)
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
declare <16 x float> @llvm.nearbyint.v16f32(<16 x float>)
define internal i32 @ortkit_largest_int(<16 x i32> %x) alwaysinline {{
  %result = call i32 @llvm.vector.reduce.smax.v16i32(<16 x i32> %x)
  ret i32 %result
}}
define internal i32 @ortkit_sum_int(<16 x i32> %x) alwaysinline {{
  %result = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %x)
  ret i32 %result
}}
define internal <16 x i32> @ortkit_nearest(<16 x float> %x) alwaysinline {{
  %whole = call <16 x float> @llvm.nearbyint.v16f32(<16 x float> %x)
  %result = fptosi <16 x float> %whole to <16 x i32>
  ret <16 x i32> %result
}}
define internal <64 x i8> @ortkit_load64(ptr %p) alwaysinline {{
  %x = load <64 x i8>, ptr %p, align 1
  ret <64 x i8> %x
}}
define internal <32 x i8> @ortkit_load32(ptr %p) alwaysinline {{
  %x = load <32 x i8>, ptr %p, align 1
  ret <32 x i8> %x
}}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define internal i32 @ortkit_accumulate(ptr %p, <16 x float> %a, <16 x float> %b) alwaysinline {{
  %old = load <16 x float>, ptr %p, align 4
  %new = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %old)
  store volatile <16 x float> %new, ptr %p, align 4
  ret i32 0
}}
declare <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float>)
define internal <16 x float> @ortkit_alone(<16 x float> %x) alwaysinline {{
  %result = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %x)
  ret <16 x float> %result
}}
define internal ptr @ortkit_either(i32 %is_first, ptr %p, ptr %q) alwaysinline {{
  %first = icmp ne i32 %is_first, 0
  %result = select i1 %first, ptr %p, ptr %q
  ret ptr %result
}}
define internal i32 @ortkit_store64(ptr %p, <64 x i8> %x) alwaysinline {{
  store <64 x i8> %x, ptr %p, align 1
  ret i32 0
}}
define internal <64 x i8> @ortkit_low(<64 x i8> %x) alwaysinline {{
  %result = and <64 x i8> %x, splat (i8 15)
  ret <64 x i8> %result
}}
define internal <64 x i8> @ortkit_high(<64 x i8> %x) alwaysinline {{
  %words = bitcast <64 x i8> %x to <32 x i16>
  %moved = lshr <32 x i16> %words, splat (i16 4)
  %bytes = bitcast <32 x i16> %moved to <64 x i8>
  %result = and <64 x i8> %bytes, splat (i8 15)
  ret <64 x i8> %result
}}
define internal <64 x i8> @ortkit_even(<64 x i8> %a, <64 x i8> %b) alwaysinline {{
  %result = shufflevector <64 x i8> %a, <64 x i8> %b, {_numbers(0, BYTES, 2)}
  ret <64 x i8> %result
}}
define internal <64 x i8> @ortkit_odd(<64 x i8> %a, <64 x i8> %b) alwaysinline {{
  %result = shufflevector <64 x i8> %a, <64 x i8> %b, {_numbers(1, BYTES, 2)}
  ret <64 x i8> %result
}}
define internal <64 x i8> @ortkit_subtract(<64 x i8> %a, <64 x i8> %b) alwaysinline {{
  %result = sub <64 x i8> %a, %b
  ret <64 x i8> %result
}}
"""


def _widened(count: int, width: int, name: str) -> str:
    lanes = ", ".join(f"i32 {min(lane, count)}" for lane in range(width))
    kind = f"<{count} x i8>"
    return f"""
define internal <{width} x i8> @ortkit_{name}({kind} %x) alwaysinline {{
  %result = shufflevector {kind} %x, {kind} zeroinitializer, <{width} x i32> <{lanes}>
  ret <{width} x i8> %result
}}
"""


def _spread(count: int) -> str:
    lanes = ", ".join(f"i32 {lane * count // VECTOR}" for lane in range(VECTOR))
    return f"""
define internal <16 x float> @ortkit_spread{count}(<{count} x float> %x) alwaysinline {{
  %result = shufflevector <{count} x float> %x, <{count} x float> poison, <16 x i32> <{lanes}>
  ret <16 x float> %result
}}
"""


_FUNCTIONS += "".join(map(_spread, (2, 4, 8)))
_FUNCTIONS += "".join(_widened(count, 32, f"padded{count}") for count in (8, 16))
_FUNCTIONS += "".join(_widened(count, 64, f"widened{count}") for count in (16, 32))


@dataclass
class NBitsEmitter(Bf16Emitter):
    """One kernel for a level of processors from AVX2 on; bytes lie as uint8."""

    processor: str = ""
    """Its level."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        if has_bf16(self.processor):
            return (*super().llvm, _FUNCTIONS, _VNNI)
        if has_vnni(self.processor):
            return (SUM, _FUNCTIONS, _VNNI)
        return (SUM, _FUNCTIONS, _AVX512 if "-v4" in self.processor else _AVX2)

    def dot4(self, total: Expr, a: Expr, b: Expr) -> Expr:
        """Return total + a b, int32, of 16 groups of four bytes; those of `a` are unsigned.

        Without VNNI sums of two products must fit 16 bits.
        """
        return self.tir.call_extern("int32x16", "ortkit_dot4", total, a, b)

    def sixty_four(self, buffer: Buffer, start: Expr) -> Expr:
        """Return 64 bytes; TVM itself reads this many one by one."""
        return self._bytes("load64", self.tir.address_of(buffer[start]))

    def thirty_two(self, buffer: Buffer, start: Expr) -> Expr:
        """Return 32 bytes."""
        pointer = self.tir.address_of(buffer[start])
        return self.tir.call_extern("uint8x32", "ortkit_load32", pointer)

    def padded(self, buffer: Buffer, start: Expr, count: int, width: int) -> Expr:
        """Return 8, 16 or 32 bytes as 32 or 64: what follows them is 0."""
        found = (
            self.thirty_two(buffer, start) if count == _WORDS else self.part(buffer, start, count)
        )
        name = "padded" if width == _WORDS else "widened"
        return self.tir.call_extern(f"uint8x{width}", f"ortkit_{name}{count}", found)

    def put_bytes(self, buffer: Buffer, start: Expr, value: Expr) -> None:
        """Write 64 bytes."""
        pointer = self.tir.address_of(buffer[start])
        call = self.tir.call_extern("int32", "ortkit_store64", pointer, value)
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

    def copy_bytes(
        self, source: tuple[Buffer, Expr], sink: tuple[Buffer, Expr], count: int
    ) -> None:
        """Copy bytes: vectors of 64, then powers of two."""
        (x, start), (y, to) = source, sink
        if count >= BYTES:
            with self.loop(self.i64(count // BYTES)) as number:
                at = self.share(number * self.i64(BYTES))
                self.put_bytes(y, to + at, self.sixty_four(x, start + at))
        done = count // BYTES * BYTES
        for size in (VECTOR, VECTOR, VECTOR, 8, 4, 2, 1):
            if count - done >= size:
                at = self.i64(done)
                self.put(y, to + at, self.part(x, start + at, size), size)
                done += size

    def either_buffer(
        self, condition: Expr, then: tuple[Buffer, Expr], otherwise: tuple[Buffer, Expr]
    ) -> Buffer:
        """Return one of two buffers of bytes, each from an element on."""
        pointers = (self.tir.address_of(buffer[start]) for buffer, start in (then, otherwise))
        buffer = self.tir.decl_buffer((self.i64(2**40),), "uint8", name=self._name("t"))
        chosen = self.cast(condition, "int32")
        chosen = self.tir.call_extern(buffer.data.ty, "ortkit_either", chosen, *pointers)
        self._blocks[-1].statements.append(self.tir.DeclBuffer(buffer, data=chosen))
        return buffer

    def alone(self, value: Expr) -> Expr:
        """Return 16 float32 that LLVM does not join with others.

        It made one vector of 192 lanes of twelve sums, and took that apart lane by lane. A
        product then had 110 GOP/s instead of 300 (TVM 0.27, 2026-11-28).
        """
        return self.tir.call_extern("float32x16", "ortkit_alone", value)

    def accumulate(self, buffer: Buffer, start: Expr, a: Expr, b: Expr) -> None:
        """Add a b to 16 float32 in memory, and leave them there.

        In a loop LLVM would keep all of a tile's sums in registers, which its sums of bytes fill.
        """
        pointer = self.tir.address_of(buffer[start])
        call = self.tir.call_extern("int32", "ortkit_accumulate", pointer, a, b)
        self._blocks[-1].statements.append(self.tir.Evaluate(call))

    def share_bytes(self, value: Expr) -> Expr:
        """Compute 64 bytes once here."""
        words = self.share_row(self.tir.reinterpret("int32x16", value), VECTOR, "int32")
        return self.tir.reinterpret("uint8x64", words)

    def everywhere(self, number: Expr) -> Expr:
        """Return 64 bytes: one group of four, given as a number of 32 bits, 16 times."""
        return self.tir.reinterpret("uint8x64", self.tir.Broadcast(number, VECTOR))

    def spread(self, values: Expr, count: int) -> Expr:
        """Return 16 float32: each of 1, 2, 4 or 8 in as many lanes as any other, in order."""
        if count == 1:
            return self.tir.Broadcast(values, VECTOR)
        return self.tir.call_extern("float32x16", f"ortkit_spread{count}", values)

    def low_nibbles(self, value: Expr) -> Expr:
        """Return the low 4 bits of 64 bytes."""
        return self._bytes("low", value)

    def high_nibbles(self, value: Expr) -> Expr:
        """Return the high 4 bits of 64 bytes."""
        return self._bytes("high", value)

    def even_bytes(self, a: Expr, b: Expr) -> Expr:
        """Return the even ones of 128 bytes."""
        return self._bytes("even", a, b)

    def odd_bytes(self, a: Expr, b: Expr) -> Expr:
        """Return the odd ones of 128 bytes."""
        return self._bytes("odd", a, b)

    def less(self, a: Expr, b: Expr) -> Expr:
        """Return a - b of 64 bytes."""
        return self._bytes("subtract", a, b)

    def nearest(self, values: Expr) -> Expr:
        """Return 16 float32 as int32, rounded to the nearest; what does not fit is undefined."""
        return self.tir.call_extern("int32x16", "ortkit_nearest", values)

    def largest_int(self, vector: Expr) -> Expr:
        """Return the largest of 16 int32."""
        return self.share(self.tir.call_extern("int32", "ortkit_largest_int", vector))

    def sum_int(self, vector: Expr) -> Expr:
        """Return the sum of 16 int32."""
        return self.share(self.tir.call_extern("int32", "ortkit_sum_int", vector))

    def _bytes(self, name: str, *operands: Expr) -> Expr:
        return self.tir.call_extern("uint8x64", f"ortkit_{name}", *operands)

"""The emitter with exact sums of products of bytes: int32, whatever the operands are.

VNNI adds up four products in one instruction. Without it bytes become 16 bits and pairs of
products are added up (pmaddwd), which no operands saturate: sums of two lie in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.targets.cpu import has_bf16

from ..tile.registers import VECTOR
from .nbits_emitter import BYTES, NBitsEmitter

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr


def _numbers(first: int, count: int, step: int = 1) -> str:
    lanes = ", ".join(f"i32 {first + step * lane}" for lane in range(count))
    return f"<{count} x i32> <{lanes}>"


def _pairs(width: int, instruction: str) -> str:
    """Return a function that adds sums of pairs of 16 columns, from vectors of `width` int16."""
    half, parts = width // 2, BYTES // width
    repeated = ", ".join(f"i32 {lane % 4}" for lane in range(width))
    lines = [
        f"declare <{half} x i32> @{instruction}(<{width} x i16>, <{width} x i16>)",
        "define internal <32 x i32> @ortkit_pairs(<32 x i32> %sum, i32 %a, <64 x i8> %w)"
        " alwaysinline {",
        "  %bytes = bitcast i32 %a to <4 x i8>",
        "  %four = zext <4 x i8> %bytes to <4 x i16>",
        f"  %x = shufflevector <4 x i16> %four, <4 x i16> poison, <{width} x i32> <{repeated}>",
    ]
    for part in range(parts):
        lines += [
            f"  %w{part} = shufflevector <64 x i8> %w, <64 x i8> poison,"
            f" {_numbers(part * width, width)}",
            f"  %y{part} = sext <{width} x i8> %w{part} to <{width} x i16>",
            f"  %p{part} = call <{half} x i32> @{instruction}(<{width} x i16> %x,"
            f" <{width} x i16> %y{part})",
        ]
    names, size = [f"%p{part}" for part in range(parts)], half
    while len(names) > 1:
        joined: list[str] = []
        for one, two in zip(names[::2], names[1::2], strict=True):
            name = f"%j{size}_{len(joined)}"
            lines.append(
                f"  {name} = shufflevector <{size} x i32> {one}, <{size} x i32> {two},"
                f" {_numbers(0, 2 * size)}"
            )
            joined.append(name)
        names, size = joined, 2 * size
    lines += [f"  %new = add <32 x i32> %sum, {names[0]}", "  ret <32 x i32> %new", "}", ""]
    return "\n".join(lines)


_AVX2 = _pairs(16, "llvm.x86.avx2.pmadd.wd")
_AVX512 = _pairs(32, "llvm.x86.avx512.pmaddw.d.512")
_FUNCTIONS = f"""
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float>)
define internal <16 x i32> @ortkit_fold(<32 x i32> %x) alwaysinline {{
  %even = shufflevector <32 x i32> %x, <32 x i32> poison, {_numbers(0, VECTOR, 2)}
  %odd = shufflevector <32 x i32> %x, <32 x i32> poison, {_numbers(1, VECTOR, 2)}
  %result = add <16 x i32> %even, %odd
  ret <16 x i32> %result
}}
define internal <16 x float> @ortkit_fma(<16 x float> %a, <16 x float> %b, <16 x float> %c) alwaysinline {{
  %result = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %result
}}
define internal <16 x float> @ortkit_fence(<16 x float> %x) alwaysinline {{
  %result = call <16 x float> @llvm.arithmetic.fence.v16f32(<16 x float> %x)
  ret <16 x float> %result
}}
"""  # noqa: E501


@dataclass
class Int8Emitter(NBitsEmitter):
    """One kernel for a level of processors from AVX2 on."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        pairs = _AVX512 if "-v4" in self.processor else _AVX2
        return (*super().llvm, _FUNCTIONS, *(() if self.has_dot4 else (pairs,)))

    @property
    def has_dot4(self) -> bool:
        """Whether four products are added up at once."""
        return has_bf16(self.processor)

    @property
    def sum_lanes(self) -> int:
        """How many int32 hold the sums of 16 columns: one each, or two still to be added."""
        return VECTOR if self.has_dot4 else 2 * VECTOR

    def begin_sum(self) -> Buffer:
        """Declare the sums of 16 columns: 0."""
        total = self.local(self.sum_lanes, "int32")
        zero = self.tir.Broadcast(self.i32(0), self.sum_lanes)
        self.store_row(total, zero, 0, self.sum_lanes)
        return total

    def add_products(self, total: Buffer, four: Expr, weights: Expr) -> None:
        """Add to the sums of 16 columns.

        Args:
            total: The sums.
            four: Neighbours along K of a row, uint8, as one uint32.
            weights: Those of 16 columns, int8 in 64 bytes.
        """
        old = self.row(total, 0, self.sum_lanes)
        if self.has_dot4:
            new = self.dot4(old, self.everywhere(four), weights)
        else:
            new = self.tir.call_extern("int32x32", "ortkit_pairs", old, four, weights)
        self.store_row(total, new, 0, self.sum_lanes)

    def sums(self, total: Buffer) -> Expr:
        """Return the sums of 16 columns, int32."""
        whole = self.row(total, 0, self.sum_lanes)
        if self.has_dot4:
            return whole
        return self.tir.call_extern("int32x16", "ortkit_fold", whole)

    def fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """Return a b + c of 16 float32, rounded once."""
        return self.tir.call_extern("float32x16", "ortkit_fma", a, b, c)

    def fenced(self, x: Expr) -> Expr:
        """Return 16 float32 that no later operation is fused with; see `Emitter.fence`."""
        return self.tir.call_extern("float32x16", "ortkit_fence", x)

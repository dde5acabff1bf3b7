"""The emitter with what rows of scores need in addition: the largest number of a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..gemm.bf16_emitter import PAIRS, Bf16Emitter
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

# What there is no NaN among.
_FUNCTIONS = """
declare float @llvm.vector.reduce.fmax.v16f32(<16 x float>)
define internal float @ortkit_largest(<16 x float> %x) alwaysinline {
  %result = call nnan float @llvm.vector.reduce.fmax.v16f32(<16 x float> %x)
  ret float %result
}
define internal i1 @ortkit_exceeds(<16 x float> %x, float %bound) alwaysinline {
  %one = insertelement <16 x float> poison, float %bound, i32 0
  %bounds = shufflevector <16 x float> %one, <16 x float> poison, <16 x i32> zeroinitializer
  %found = fcmp ogt <16 x float> %x, %bounds
  %bits = bitcast <16 x i1> %found to i16
  %result = icmp ne i16 %bits, 0
  ret i1 %result
}
"""


@dataclass
class RowEmitter(Bf16Emitter):
    """One kernel that reduces rows of scores."""

    @property
    def llvm(self) -> tuple[str, ...]:
        """Modules of LLVM with functions that the kernel calls."""
        return (*super().llvm, _FUNCTIONS)

    def largest_of(self, vector: Buffer) -> Expr:
        """Return the largest of 16 float32 on the stack; none is NaN."""
        return self.share(self.tir.call_extern("float32", "ortkit_largest", self._whole(vector)))

    def exceeds(self, vector: Buffer, bound: Expr) -> Expr:
        """Return whether any of 16 float32 on the stack is larger than a number; a NaN is not."""
        return self.tir.call_extern("bool", "ortkit_exceeds", self._whole(vector), bound)

    def _whole(self, vector: Buffer) -> Expr:
        return self.row(vector, 0, VECTOR)

    def pairs_of(self, source: Buffer, at: Expr, count: int) -> Expr:
        """Return 32 elements as bfloat16, as uint16: `count` from memory, 16 or 32, then zeros.

        Args:
            source: float32, which is rounded, or bfloat16 as uint16.
            at: The first element.
            count: How many are read.
        """
        is_narrow = self.dtype(source[self.i64(0)]) == "uint16"
        if is_narrow and count == PAIRS:
            return self.part(source, at, PAIRS)
        if is_narrow:
            low = self.part(source, at, VECTOR)
            zeros = self.tir.Broadcast(self.constant(0, "uint16"), VECTOR)
            return self.shuffled(low, zeros, range(PAIRS))
        low = self.part(source, at, VECTOR)
        if count == PAIRS:
            return self.rounded_pair(low, self.part(source, at + self.i64(VECTOR), VECTOR))
        return self.rounded_pair(low, self.tir.Broadcast(self.f32(0.0), VECTOR))

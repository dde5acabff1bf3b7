"""unwrap-fused-matmul: what ONNX Runtime fused into a product, as nodes of their own again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class UnwrapFusedMatmul(NodePass):
    """Write FusedMatMul as Transposes, MatMul and Mul.

    Before:
        y = FusedMatMul<alpha = 0.125, transB = 1>(q, k)
    After:
        y = Mul(MatMul(q, Transpose(k)), 0.125)

    Models that ONNX Runtime saved after its own optimizations hold the op. Attention is then seen
    in them as in others, and what is left of it ONNX Runtime fuses again when it loads a model.

    Skips:
        * Operands of unknown rank that are transposed, or transposed along more than two axes.
        * Unknown element types.

    Source:
        com.microsoft.FusedMatMul-1: alpha * op(A) @ op(B).
    """

    name: ClassVar[str] = "unwrap-fused-matmul"
    ops: ClassVar[Sequence[str]] = ("com.microsoft::FusedMatMul",)

    def rewrite(self, site: Site) -> None:
        flags = ("transA", "transB")
        ranks = [site.rank(site.input(index)) for index in range(2)]
        is_transposed = [site.int(flag, 0) == 1 for flag in flags]
        dtype, alpha = site.dtype(site.output), site.float("alpha", 1.0)
        if any(site.int(flag, 0) for flag in ("transBatchA", "transBatchB")):
            site.miss("it transposes more than its last two axes")
            return
        if dtype is None or any(
            is_swapped and (rank is None or rank < 2)
            for is_swapped, rank in zip(is_transposed, ranks, strict=True)
        ):
            site.miss("the type or rank of an operand is not known")
            return
        if not site.claim("parts"):
            return
        operands = [
            _transposed(site, site.input(index), ranks[index] or 0)
            if is_swapped
            else site.input(index)
            for index, is_swapped in enumerate(is_transposed)
        ]
        made = site.op("MatMul", operands)
        if alpha != 1:
            scale = site.constant(np.array(alpha, dtype.numpy()), f"{site.output.name}/alpha")
            made = site.op("Mul", [made, scale])
        site.replace(made)


def _transposed(site: Site, value: ir.Value | None, rank: int) -> ir.Value:
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return site.op("Transpose", [value], {"perm": perm})

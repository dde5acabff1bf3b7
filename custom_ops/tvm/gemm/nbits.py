"""Matrix products with weights in 4 or 8 bits and a scale for each block: MatMulNBits.

A region is `finish(A W)`: A float32, W as MatMulNBits has it, `finish` any chain of pointwise
operators. The node lets a kernel round A (its accuracy level is bfloat16 or int8), so that of many
rows A and W are rounded to bfloat16 and multiplied by AMX tiles; a few rows are multiplied in
float32. Sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, product
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_tiles

from ...forms.gemm_nbits import NBitsForm, read_nbits
from .bf16_emitter import PAIRS
from .nbits_writer import Writer

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# Of one core: a row of bfloat16 becomes 32 results in a tile, at 1,000 GFLOP/s.
_PICOSECONDS_PER_MULTIPLY = 2
# A core reads weights at 11 GB/s from memory.
_PICOSECONDS_PER_BYTE = 90
# A slice of work rounds rows of A, an element in this time.
_PICOSECONDS_TO_ROUND = 400
_MOST_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class NBitsProduct:
    """One product of a region."""

    form: NBitsForm

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if not has_tiles(level):
            return Refused(f"processors of level {level} have no tiles")
        return None

    def launch(self, level: str) -> Launch:
        """Units are panels of columns; points are rows."""
        del level
        of = self.form
        row = of.depth * PAIRS * _PICOSECONDS_PER_MULTIPLY
        bytes_read = of.columns * (of.depth * of.bits // 8 + of.depth // of.block * 4)
        return Launch(
            (Extent(-(-of.columns // PAIRS)),),
            product(of.leading),
            row,
            shared_nanoseconds=min(bytes_read * _PICOSECONDS_PER_BYTE // 1000, _MOST_NANOSECONDS),
            slice_picoseconds=of.depth * _PICOSECONDS_TO_ROUND,
        )

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        del level
        return Writer(self.form, symbol).function()


def match(signature: RegionSignature) -> NBitsProduct | Refused | None:
    """Return the region as a product with weights in 4 or 8 bits; None if it is something else."""
    form = read_nbits(signature)
    return NBitsProduct(form) if isinstance(form, NBitsForm) else form

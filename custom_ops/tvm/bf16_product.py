"""Matrix products in bfloat16 with sums in float32: packed weights, AMX tiles or AVX512-BF16.

A region is `finish(A W)`: A rounded to bfloat16, W packed as `ortkit.kernels.bf16` packs it, and
`finish` any line of pointwise operators with biases and tensors of the result's shape. The work is
cut into single rows of panels of 32 columns, since the number of rows may not be known; a slice of
it is taken panel by panel within blocks of rows that stay in the second level of cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch, Refused
from ortkit.kernels.bf16 import DEPTH
from ortkit.kernels.cpu import has_bf16
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of

from .bf16_emitter import PAIRS
from .bf16_form import ProductForm, read_product

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# Of a block of rows of A in bfloat16: half of a second level of cache.
_BLOCK_BYTES = 1024 * 1024
_MOST_ROWS = 512
# Of rows of A that are copied to the stack.
_COPY_BYTES = 256 * 1024
_MOST_DEPTH_OF_COPY = 8192
# Of one core: 2,000 GFLOP/s with tiles, 150 with dot products; see `Epilogue.flops`.
_FEMTOSECONDS_PER_MULTIPLY = {"x86-64-v4-amx": 1_000, "x86-64-v4-bf16": 13_000}
_FEMTOSECONDS_PER_FLOP = 2_000
# Weights come at 15 GB/s, from beyond the second level of cache.
_PICOSECONDS_PER_BYTE = 66
_MOST_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Bf16Product:
    """One product of a region."""

    form: ProductForm

    @property
    def depth(self) -> int:
        """K rounded up to whole tiles."""
        return -(-self.form.depth // DEPTH) * DEPTH

    @property
    def panels(self) -> int:
        """How many panels of 32 columns there are; the last may be narrower."""
        return -(-self.form.columns // PAIRS)

    @property
    def is_copied(self) -> bool:
        """Whether rows of A have to be copied: rounded, or filled up with zeros."""
        return self.form.is_wide or self.form.depth != self.depth

    @property
    def block_rows(self) -> int:
        """Rows of a block; a multiple of 32."""
        room = _COPY_BYTES if self.is_copied else _BLOCK_BYTES
        most = min(_MOST_ROWS, room // (2 * self.depth))
        return max(PAIRS, most // PAIRS * PAIRS)

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if not has_bf16(level):
            return Refused(f"processors of level {level} have no instructions for bfloat16")
        if self.is_copied and self.depth > _MOST_DEPTH_OF_COPY:
            return Refused(f"rows of {self.form.depth} elements that are not bfloat16 already")
        return None

    def launch(self, level: str) -> Launch:
        """A unit is a row of a panel."""
        multiplies = self.depth * PAIRS * _FEMTOSECONDS_PER_MULTIPLY[level]
        flops = (self.form.finish.epilogue.flops + 2) * PAIRS * _FEMTOSECONDS_PER_FLOP
        cost = max(1, (multiplies + flops) // 1_000)
        rows = [extent_of(dim) for dim in self.form.signature.inputs[self.form.a].shape[:-1]]
        weight = self.depth * self.panels * PAIRS * 2 * _PICOSECONDS_PER_BYTE // 1_000
        weight = min(weight, _MOST_NANOSECONDS)
        return Launch((*rows, Extent(self.panels)), Extent(1), cost, shared_nanoseconds=weight)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        from .bf16_writer import Writer

        return Writer(self, symbol, has_tiles=level == "x86-64-v4-amx").function()


def match(signature: RegionSignature) -> Bf16Product | Refused | None:
    """Return the region as a product of bfloat16; None if it is something else."""
    form = read_product(signature)
    return Bf16Product(form) if isinstance(form, ProductForm) else form

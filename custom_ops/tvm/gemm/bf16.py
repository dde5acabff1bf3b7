"""Matrix products in bfloat16 with sums in float32: packed weights, AMX tiles or AVX512-BF16.

A region is `finish(A W)`: A rounded to bfloat16, W packed as `ortkit.kernels.layouts.bf16_blocks`
packs it, and `finish` any chain of pointwise operators with biases and tensors of the result's
shape. The work is cut into single rows of panels of 32 columns, since the number of rows may not
be known; a slice of it is taken panel by panel within blocks of rows that stay in the second level
of cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.layouts.bf16_blocks import DEPTH
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused
from ortkit.targets.cpu import has_bf16

from ...forms.gemm_bf16 import ProductForm, read_product
from .bf16_emitter import PAIRS

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

    from .bf16_writer import Writer

# Of a block of rows of A in bfloat16: half of a second level of cache.
_BLOCK_BYTES = 1024 * 1024
_MOST_ROWS = 512
# Of rows of A that are copied to the stack.
_COPY_BYTES = 600 * 1024
_NEAR_COPY_BYTES = 64 * 1024
# What the shim hands to a thread at once.
_SLICE_FEMTOSECONDS = 16_000_000_000
_MOST_DEPTH_OF_COPY = 8192
# Of one core: 2,000 GFLOP/s with tiles, 150 with dot products; see `Epilogue.flops`.
_TILES = "x86-64-v4-amx"
_FEMTOSECONDS_PER_MULTIPLY = {_TILES: 1_000, "x86-64-v4-bf16": 13_000}
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
        """Whether rows of A are copied: gathered, rounded, or filled up with zeros."""
        form = self.form
        is_changed = form.is_wide or form.gate is not None
        return is_changed or form.depth != self.depth or form.patches is not None

    @property
    def span(self) -> int:
        """Panels of a group: for all of them a row that has to be copied is copied once.

        All or one: all if a slice of work then still has some rows.
        """
        cost = self.panels * PAIRS * self.depth * _FEMTOSECONDS_PER_MULTIPLY[_TILES]
        is_light = 2 * PAIRS * cost <= _SLICE_FEMTOSECONDS
        return self.panels if self.is_copied and is_light else 1

    @property
    def groups(self) -> int:
        """How many groups of panels there are."""
        return -(-self.panels // self.span)

    @property
    def block_rows(self) -> int:
        """Rows of a block; a multiple of 32."""
        room = _BLOCK_BYTES
        if self.is_copied:
            room = _NEAR_COPY_BYTES if self.groups == 1 else _COPY_BYTES
        most = min(_MOST_ROWS, room // (2 * self.depth))
        return max(PAIRS, most // PAIRS * PAIRS)

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if not has_bf16(level):
            return Refused(f"processors of level {level} have no instructions for bfloat16")
        if self.is_copied and self.depth > _MOST_DEPTH_OF_COPY:
            return Refused(f"rows of {self.form.depth} elements that have to be copied")
        return None

    @property
    def unit_axes(self) -> tuple[Extent, ...]:
        """The sizes that units count, but for groups."""
        return self.form.leading

    @property
    def rows_of_unit(self) -> int:
        """Rows of A that are multiplied for a unit and a panel."""
        return 1

    def launch(self, level: str) -> Launch:
        """Say how units are counted: a row or, of images, a line, and a group of panels."""
        return self._plan(level)._launch(level)

    def _launch(self, level: str) -> Launch:
        multiplies = self.depth * _FEMTOSECONDS_PER_MULTIPLY[level]
        flops = (self.form.finish.epilogue.flops + 2) * _FEMTOSECONDS_PER_FLOP
        cost = max(1, self.rows_of_unit * self.span * PAIRS * (multiplies + flops) // 1_000)
        weight = self.depth * self.panels * PAIRS * 2 * _PICOSECONDS_PER_BYTE // 1_000
        weight = min(weight, _MOST_NANOSECONDS)
        units = (*self.unit_axes, Extent(self.groups))
        return Launch(units, Extent(1), cost, shared_nanoseconds=weight)

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        plan = self._plan(level)
        return plan.writer(symbol, has_tiles=level == _TILES).function()

    def writer(self, symbol: str, *, has_tiles: bool) -> Writer:
        """Return what writes the kernel."""
        from .bf16_writer import Writer

        return Writer(self, symbol, has_tiles=has_tiles)

    def _plan(self, level: str) -> Bf16Product:
        """Return how the work is cut at a level of processors."""
        from .bf16_implicit_im2col import Bf16Image, suits

        return Bf16Image(self.form) if level == _TILES and suits(self) else self


def match(signature: RegionSignature) -> Bf16Product | Refused | None:
    """Return the region as a product of bfloat16; None if it is something else."""
    form = read_product(signature)
    return Bf16Product(form) if isinstance(form, ProductForm) else form

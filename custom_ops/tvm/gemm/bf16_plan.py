"""How a bfloat16 product is cut into work: panels of columns, blocks of rows, copies of rows."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.layouts.bf16_blocks import DEPTH
from ortkit.kernels.sizes import Extent

from ...forms.gemm_bf16 import ProductForm
from .bf16_emitter import PAIRS

# Of a block of rows of A in bfloat16: half of a second level of cache.
_BLOCK_BYTES = 1024 * 1024
_MOST_ROWS = 512
# Of rows of A that are copied to the stack.
_COPY_BYTES = 600 * 1024
_NEAR_COPY_BYTES = 64 * 1024
# What the shim hands to a thread at once.
_SLICE_FEMTOSECONDS = 16_000_000_000
#: The level of processors that have tiles.
TILES = "x86-64-v4-amx"
#: Of one core: 2,000 GFLOP/s with tiles, 150 with dot products; see `Epilogue.flops`.
FEMTOSECONDS_PER_MULTIPLY = {TILES: 1_000, "x86-64-v4-bf16": 13_000}


@dataclass(frozen=True)
class Bf16Plan:
    """The work of one product of a region."""

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
        cost = self.panels * PAIRS * self.depth * FEMTOSECONDS_PER_MULTIPLY[TILES]
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

    @property
    def unit_axes(self) -> tuple[Extent, ...]:
        """The sizes that units count, but for groups."""
        return self.form.leading

    @property
    def rows_of_unit(self) -> int:
        """Rows of A that are multiplied for a unit and a panel."""
        return 1

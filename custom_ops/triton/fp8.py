"""Products of matrices in eight-bit floats: of one row, and of many rows in eight bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE
from ortkit.kernels.triton.hand import hand_variant
from ortkit.kernels.triton.source import VariantSource

from .conv_tiles import power
from .fp8_form import is_narrow, read_fp8
from .gemm import TiledProduct, fits
from .gemm_tiles import SHARED, Tile
from .product_tiles import Strip
from .products import RowProduct

#: Steps of twice as many numbers as in half precision are as many bytes.
_TIMES = 2


@dataclass(frozen=True)
class RowProduct8(RowProduct):
    """Products of one row, whose matrices are read in eight bits."""

    #: What converts such numbers.
    architectures: ClassVar[tuple[int, ...]] = (89, 90, 100, 103, 120)

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the kernel, and one for unaligned tensors."""
        call, text = self.call()
        return tuple(
            hand_variant(
                self.form.signature, (call,), text, is_aligned=is_aligned,
                architectures=self.architectures,
            )
            for is_aligned in (True, False)
        )  # fmt: skip

    def strip(self) -> Strip:
        """Return the part of one block."""
        strip = super().strip()
        if len(self.form.weights) > 1:
            return strip  # there are no registers for more
        return replace(strip, depth=min(strip.depth * _TIMES, power(self.form.depth)))


@dataclass(frozen=True)
class TiledProduct8(TiledProduct):
    """Products of many rows in eight bits."""

    def tiles(self) -> tuple[Tile, ...]:
        """Return those for half precision, with steps of as many bytes."""
        if self.form.signature.outputs[0].dtype == "float32":
            return (replace(SHARED, depth=SHARED.depth * _TIMES),)
        return tuple(replace(tile, depth=tile.depth * _TIMES) for tile in super().tiles())


def match(signature: RegionSignature) -> RowProduct8 | TiledProduct8 | Refused | None:
    """Return the region as products of matrices in eight bits; None if it is something else."""
    found = read_fp8(signature)
    if found is None or isinstance(found, Refused):
        return found
    is_static = all(signature.inputs[one].shape[-1] == found.columns for one in found.reads)
    if found.rows == ONE and is_static:
        return RowProduct8(found)
    if not is_narrow(found):
        return Refused("more than one row in half precision, and a matrix in eight bits")
    return TiledProduct8(found) if fits(found.columns) else Refused("products of too many columns")

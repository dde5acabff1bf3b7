"""An attention that was understood: what it computes, from what, masked by what."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.ops.attention.core import Core
from ortkit.ops.attention.heads import Heads
from ortkit.ops.attention.masks import Mask

#: Masks next to any score, and is no number that kernels take for -inf; by element type.
ALMOST_LOWEST = {ir.DataType.FLOAT: -3.4e38, ir.DataType.FLOAT16: -65472.0}
#: A score added to this is lost in float32, and it is above every floor.
DEEP = -1e20


@dataclass(frozen=True)
class Attention:
    """An attention that was understood."""

    core: Core
    heads: Heads
    mask: Mask
    dtype: ir.DataType
    """What is computed in; operands of another type are cast."""
    is_cast: bool = False
    """Whether some are."""

    @property
    def scale(self) -> float:
        """What the product of queries and keys is multiplied with.

        The usual one, where the written one is that but for the rounding of its factors.
        """
        written, usual = self.core.scale * self.heads.scale, self.default_scale
        if usual is not None and math.isclose(written, usual, rel_tol=1e-6):
            return usual
        return written

    @property
    def default_scale(self) -> float | None:
        """The scale that ops take by default, None if the head size is not known."""
        size = self.heads.head_size
        return 1 / math.sqrt(size) if isinstance(size, int) else None


def deepest(attention: Attention) -> float | None:
    """Return what may be added to scores instead of setting them to a finite number.

    Scores that are set to one number are equal, and so are scores that are lost in it. None
    where another part of the mask is relative to that number.
    """
    if attention.mask.fills_alone:
        return ALMOST_LOWEST[attention.dtype]
    is_deep = attention.mask.has_one_level and attention.dtype == ir.DataType.FLOAT
    return DEEP if is_deep else None

"""GroupQueryAttention over a cache in place: rotation, the new rows, and attention in one go.

A unit is one head of keys and values and a part of the new rows, with all heads of queries that
share it. The unit writes the new rows that its queries see into the cache, and then reads all of
them there. Units of one head write the same bytes to the same places.

As ONNX Runtime's kernel, a cache that is an output of its own gets the old rows, and zeros behind
the new ones. Sizes and lengths that do not fit each other end the run with a code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused

from ...forms.attention_grouped import GroupedForm, read_grouped
from ..tile.registers import REGISTERS, VECTOR
from .grouped_block import PARTS
from .grouped_writer import GroupedWriter
from .tiles import tiling

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

# One core of x86-64-v4: a multiply-add in tiles, and a score's exponential.
_PICOSECONDS_PER_MULTIPLY = 13
_PICOSECONDS_PER_SCORE = 400
# Of one query's score of a key, and its part of the result: ONNX Runtime's and ours.
_RUNTIME_NS, _OURS_NS = 1 / 25, 1 / 75


@dataclass(frozen=True)
class GroupedAttention:
    """One attention of a region."""

    form: GroupedForm

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of a single row over a cache, ONNX Runtime's and ours."""
        del level
        q = self.form.attention.q
        elements = NOMINAL_SIZE * q.heads * 2 * q.width
        return elements * _RUNTIME_NS, elements * _OURS_NS

    def launch(self, level: str) -> Launch:
        """A point is a key that the rows of a unit may see."""
        of = self.form.attention
        cost = 2 * of.q.width * _PICOSECONDS_PER_MULTIPLY + _PICOSECONDS_PER_SCORE
        cost *= VECTOR // REGISTERS[level].lanes * self.form.share
        units = of.q.batch, Extent(of.k.heads), Extent(PARTS)
        return Launch(units, of.q.length * of.k.length, max(1, cost // PARTS))

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        return GroupedWriter(self.form, symbol, tiling(level)).function()


def match(signature: RegionSignature) -> GroupedAttention | Refused | None:
    """Return the region as attention over a cache; None if it is something else."""
    form = read_grouped(signature)
    return GroupedAttention(form) if isinstance(form, GroupedForm) else form


ANCHOR = Anchor(
    "attention", match, (("com.microsoft", "GroupQueryAttention"),), epilogue=frozenset(), batch=1,
    in_place=True,
)  # fmt: skip

"""Where attention's operands lie for one block of queries of one head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...forms.attention_cpu import AttentionForm, Heads
from ..tile.registers import VECTOR

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class OperandLayout:
    """Offsets of rows, and what is read there.

    Args:
        e: Where they are emitted.
        form: What is computed.
        buffers: The region's tensors.
        vectors: Of queries in the block; those after the last query repeat it.
        batch: The sample.
        head: The head of Q.
        start: The first query.
    """

    e: TileEmitter
    form: AttentionForm
    buffers: list[Buffer]
    vectors: int
    batch: Expr
    head: Expr
    start: Expr

    @property
    def lanes(self) -> int:
        """The queries of the block."""
        return self.vectors * VECTOR

    def queries_here(self) -> Expr:
        """Return how many of the block there are."""
        e = self.e
        left = e.extent(self.form.q.length) - self.start
        return e.share(e.minimum(e.i64(self.lanes), left))

    def kv_head(self) -> Expr:
        """Return the head of K and V that this one of Q reads."""
        share = self.form.q.heads // self.form.k.heads
        return self.e.share(self.e.divide_down(self.head, share))

    def base(self, heads: Heads, head: Expr) -> Expr:
        """Return where the first row of a head of this sample begins."""
        e, length = self.e, self.e.extent(heads.length)
        if heads.stacked:
            number = self.batch * e.i64(heads.heads) + head
            return e.share(number * length * e.i64(heads.width))
        column = head * e.i64(heads.width) + e.i64(heads.first)
        return e.share(self.batch * length * e.i64(heads.pitch) + column)

    def bias(self, heads: Heads, head: Expr) -> Callable[[Expr], Expr] | None:
        """Return what gives the bias of a column of a head."""
        if heads.bias is None:
            return None
        tensor, first = heads.bias
        start = self.e.share(head * self.e.i64(heads.width) + self.e.i64(first))
        return lambda column: self.buffers[tensor][start + column]

    def number(self, lane: Expr) -> Expr:
        """Return the query of a lane; the last one instead of those after it."""
        e = self.e
        return e.minimum(self.start + lane, e.extent(self.form.q.length) - e.i64(1))

    def base_of_mask(self) -> Expr:
        """Return where the first row of this head's mask begins."""
        e, mask, q = self.e, self.form.mask, self.form.q
        assert mask is not None
        number = e.i64(0)
        if mask.by_batch:
            number = self.batch * e.i64(q.heads) if mask.by_head else self.batch
        if mask.by_head:
            number = number + self.head
        return e.share(number * e.extent(q.length) * e.extent(self.form.k.length))

    def mask_at(self, index: Expr) -> Expr:
        """Return what the mask adds to a score."""
        e, mask = self.e, self.form.mask
        assert mask is not None
        value = self.buffers[mask.tensor][index]
        if self.form.signature.inputs[mask.tensor].dtype != "bool":
            return value
        return e.select(e.not_equal(value, e.u8(0)), e.f32(0.0), e.f32(LOWEST))

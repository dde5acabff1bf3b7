"""Attention: scores, softmax and the weighted sum of values of a block of queries in one go.

The scores of a block lie with their keys in rows and the queries in lanes. So K and V are read
where they are, row by row, the softmax of all lanes runs side by side, and only the block of
queries (and of a mask) is transposed. Keys come in blocks of a bounded number, the sums of a
softmax growing with them (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018), so that scratch is bounded however many keys there are.

As in ONNX Runtime's Attention a row whose scores are all the lowest float or less is zero. What
causality hides is not read: a NaN there leaves no trace, where ONNX Runtime adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.anchor import Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused

from ...forms.attention_cpu import AttentionForm, read_attention
from ..tile.registers import REGISTERS, VECTOR
from .amx import TileAttention
from .template import AttentionTemplate
from .tiles import Tiling, tiling

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Buffer, Expr

    from ..tile.emitter import TileEmitter

# Blocks of an unknown number of queries go into this many units for each head.
_PARTS = 8
# Keys of a region, for whether it is taken for alike by tuning.
_FEW_KEYS = 256
_MOST_VECTORS = 4
# One core of x86-64-v4: a multiply-add in tiles, and a score's exponential.
_PICOSECONDS_PER_MULTIPLY = 13
_PICOSECONDS_PER_SCORE = 400


@dataclass(frozen=True)
class Attention(AttentionTemplate):
    """Attention in float32: `panel` vectors of queries are a block."""

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        length = self.form.k.length.static
        few = "<=256" if length is not None and length <= _FEW_KEYS else ">256"
        return f"attention,{few} keys"

    def _tiling(self, level: str) -> Tiling:
        return tiling(level, min(self.panel, _MOST_VECTORS), self.keys)

    def launch(self, level: str) -> Launch:
        """A point is a query's score of a key.

        Units are blocks of queries of one head of one sample, or runs of blocks.
        """
        q, k, v, tiles = self.form.q, self.form.k, self.form.v, self._tiling(level)
        length = q.length.static
        runs = _PARTS if length is None else -(-length // tiles.queries)
        units = (q.batch, Extent(q.heads), Extent(runs))
        cost = (q.width + v.width) * _PICOSECONDS_PER_MULTIPLY + _PICOSECONDS_PER_SCORE
        cost *= VECTOR // REGISTERS[level].lanes
        if self.form.is_causal:
            cost //= 2
        if length is not None:
            return Launch(units, Extent(tiles.queries) * k.length, cost)
        return Launch(units, q.length * k.length, max(1, cost // _PARTS))

    def unit(self, e: TileEmitter, buffers: list[Buffer], at: tuple[Expr, ...]) -> None:
        """Emit blocks of queries of one head."""
        (_, batch, head, run), tiles = at, self._tiling(e.processor)
        first, count = self._blocks(e, tiles, run)
        with e.loop(count) as number:
            start = e.share((first + number) * e.i64(tiles.queries))
            self._block(e, buffers, tiles, (batch, head, start))

    def _blocks(self, e: TileEmitter, tiles: Tiling, run: Expr) -> tuple[Expr, Expr]:
        """Return the first block of a run, and how many there are in it."""
        if self.form.q.length.static is not None:
            return run, e.i64(1)
        blocks = e.share(e.divide_up(e.extent(self.form.q.length), tiles.queries))
        first = e.share(e.divide_down(run * blocks, _PARTS))
        return first, e.share(e.divide_down((run + e.i64(1)) * blocks, _PARTS) - first)

    def _block(
        self, e: TileEmitter, buffers: list[Buffer], tiles: Tiling, at: tuple[Expr, Expr, Expr]
    ) -> None:
        """Compute a block; one of few queries, as the last one may be, has fewer vectors."""
        from .fp32_block import Block
        from .operand_layout import OperandLayout

        def emit(vectors: int) -> None:
            Block(OperandLayout(e, self.form, buffers, vectors, *at), tiles).emit()

        length = self.form.q.length.static
        left = None if length is None else length % tiles.queries or tiles.queries
        has_narrow = tiles.vectors > 1 and (left is None or left <= VECTOR)
        if not has_narrow or (length is not None and length <= VECTOR):
            emit(1 if has_narrow else tiles.vectors)
            return
        with e.block() as wide:
            emit(tiles.vectors)
        with e.block() as narrow:
            emit(1)
        e.branch(e.extent(self.form.q.length) - at[2] > e.i64(VECTOR), wide, narrow)


def match(signature: RegionSignature) -> Attention | TileAttention | Refused | None:
    """Return the region as attention; None if it is something else."""
    form = read_attention(signature)
    if not isinstance(form, AttentionForm):
        return form
    return TileAttention(form) if form.is_rounded else Attention(form)


ANCHOR = Anchor(
    "", match, (("", "Attention"),), prologue=frozenset({"Split", "Add", "Cast"}),
    epilogue=frozenset({"Cast"}), longest=1, batch=1, must_pay=True,
)  # fmt: skip

"""Attention of operands that are rounded to bfloat16, with the tiles of AMX.

Queries lie in rows: the tiles of scores are Q K^T as they are, their softmax runs along rows, and
what it gives, rounded to bfloat16, is the left operand of the product with V. So only keys and
values are packed, a block of them at once, and that serves all queries of a group. As in
`attention` the sums of a softmax grow from block to block, so that scratch is bounded.

The exponentials are summed before they are rounded. What is hidden by causality, or beyond the
last key, has a weight of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortkit.kernels.backend import Launch
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused

from ..gemm.bf16_emitter import PAIRS
from .template import AttentionTemplate

if TYPE_CHECKING:
    from ortkit.kernels.tvm.emit import Expr

_LEVEL = "x86-64-v4-amx"
# Queries that packed keys serve, at least and, of narrow heads, at most.
_GROUP, _LARGE_GROUP = 128, 384
_NARROW = 64
# As many units there should be, for processors with many cores, before groups are larger.
_MANY_UNITS = 24
# Groups of an unknown number of queries go into this many units for each head.
_PARTS = 8
# Keys of a block, for heads of up to 128 and wider ones.
_KEYS, _KEYS_OF_WIDE = 256, 128
_WIDE = 128
# One core: a multiply-add in tiles, and a score's exponential.
_FEMTOSECONDS_PER_MULTIPLY = 1_200
_FEMTOSECONDS_PER_SCORE = 400_000


@dataclass(frozen=True)
class TileAttention(AttentionTemplate):
    """Attention of rounded operands: `panel` times 64 queries are a group, fewer of wide heads."""

    @property
    def kind(self) -> str:
        """See `TunableTemplate`."""
        keys, wide = self.form.k.length.static, self._widest > _NARROW
        few = "any" if keys is None else f"{'<=' if keys <= _KEYS else '>'}{_KEYS}"
        return f"attention in bfloat16,{few} keys,heads{'>' if wide else '<='}{_NARROW}"

    @property
    def _widest(self) -> int:
        return max(_NARROW, self.depth, self.form.v.width)

    @property
    def block_keys(self) -> int:
        """Keys of a block, a multiple of 32."""
        wide = max(self.form.q.width, self.form.v.width) > _WIDE
        most = _KEYS_OF_WIDE if wide else _KEYS
        if self.keys:  # as much room for heads of any width
            most = max(PAIRS, self.keys * _NARROW // self._widest // PAIRS * PAIRS)
        known = self.form.k.length.static
        return most if known is None else min(most, max(1, -(-known // PAIRS)) * PAIRS)

    @property
    def depth(self) -> int:
        """The width of Q and K, filled up to whole tiles."""
        return -(-self.form.q.width // PAIRS) * PAIRS

    @property
    def group(self) -> int:
        """Queries of a group, a multiple of 32: the more, the less often keys are packed."""
        q, length = self.form.q, self.form.q.length.static
        if self.panel:
            return max(PAIRS, self.panel * _NARROW * _NARROW // self._widest // PAIRS * PAIRS)
        if length is None:
            return _GROUP
        heads = q.heads * (q.batch.static or 1)
        for most in (_LARGE_GROUP, _LARGE_GROUP * 2 // 3):
            room = most * _NARROW // self._widest // PAIRS * PAIRS
            parts = -(-length // max(room, _GROUP))
            if heads * parts >= _MANY_UNITS:
                return -(-length // parts // PAIRS) * PAIRS
        return _GROUP

    @property
    def _parts(self) -> int:
        length = self.form.q.length.static
        return _PARTS if length is None else -(-length // self.group)

    @property
    def _units(self) -> tuple[Extent, ...]:
        """Runs of groups of queries, of one head of one sample."""
        q = self.form.q
        return (q.batch, Extent(q.heads), Extent(self._parts))

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a processor level."""
        if level == _LEVEL:
            return None
        return Refused(f"processors of level {level} have no tiles for attention in bfloat16")

    def launch(self, level: str) -> Launch:
        """A point is a query's score of a key."""
        del level
        q, k, v = self.form.q, self.form.k, self.form.v
        cost = (q.width + v.width) * _FEMTOSECONDS_PER_MULTIPLY + _FEMTOSECONDS_PER_SCORE
        cost = cost // (2 if self.form.is_causal else 1) // 1_000
        length = q.length.static
        if length is not None:
            return Launch(self._units, Extent(min(length, self.group)) * k.length, max(1, cost))
        return Launch(self._units, q.length * k.length, max(1, cost // _PARTS))

    def lower(self, symbol: str, level: str) -> Expr:
        """Return the kernel's function."""
        from .amx_block import GroupWriter
        from .amx_emitter import RowEmitter

        del level
        e = RowEmitter(symbol)
        buffers, begin, end = e.parameters(self.form.signature)
        writer = GroupWriter(e, self.form, buffers, self.block_keys, self.depth, self.group)
        full = e.i64(PAIRS // 2)
        e.shape_tiles([(full, PAIRS * 2)] * 8)
        groups = e.share(e.divide_up(e.extent(self.form.q.length), self.group))
        with e.loop(end - begin) as index:
            batch, head, run = e.decode(begin + index, self._units)
            first = e.share(e.divide_down(run * groups, self._parts))
            last = e.share(e.divide_down((run + e.i64(1)) * groups, self._parts))
            with e.loop(last - first) as number:
                writer.emit(batch, head, e.share((first + number) * e.i64(self.group)))
        e.release_tiles()
        return e.function()

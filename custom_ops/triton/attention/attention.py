"""Attention on CUDA: which launches compute a region that is one, see `attention_kernel`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.kernels.anchor import Anchor
from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.attention import read_attention
from ...forms.attention_cuda import AttentionForm, Mask
from ...forms.fp8_rounding import without_rounding
from .attention_arguments import (
    MOST_ELEMENTS,
    fill_of,
    inverse_of,
    kind_of,
    layout_of,
    parts_of,
    step_of,
)
from .attention_hopper import hopper_variant
from .attention_kv_append import append_variant, why_not_appended
from .attention_split_kv import split_variant
from .attention_tiles import HopperTile, Tile, box_of, takes_form, tiles_of

#: Wider heads do not fit into a block's registers.
MOST_WIDTH = 256
_MOST_HEADS = 65535
_MULTIPLE = 16
#: Widths of heads whose rows begin at multiples of 16 bytes.
_VECTOR = 8
#: What a result in eight bits is divided by, at least: the least float32 with all of its digits.
_LEAST_FACTOR = 2.0**-126
#: Columns of a result in eight bits that one copy of a box writes.
_MOST_NARROW = 128


@dataclass(frozen=True)
class Attention:
    """One attention of a region."""

    form: AttentionForm

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a variant for each range of sizes, with whole blocks or without."""
        found = append_variant(self.form) if self.form.caches else split_variant(self.form)
        if self.form.factor is not None:
            found = None
        if found is not None:
            return (found,)
        made = []
        for tile in tiles_of(self.form):
            if isinstance(tile, HopperTile):
                made.append(hopper_variant(self.form, tile))
                continue
            q, k = self.form.q.length, self.form.k.length
            whole = [
                (extent, size)
                for extent, size in ((q, tile.queries), (k, tile.keys))
                if extent.static is None
            ]
            if whole:
                conditions = [Condition(extent, divisible_by=size) for extent, size in whole]
                known = tuple(extent for extent, size in whole if size % _MULTIPLE == 0)
                made.append(self._variant(tile, conditions, known, is_whole=True))
            made.append(self._variant(tile, [], (), is_whole=False))
        return tuple(made)

    def _variant(
        self, tile: Tile, conditions: list[Condition], known: tuple[Extent, ...], *, is_whole: bool
    ) -> VariantSource:
        form, signature = self.form, self.form.signature
        bounds = [
            Condition(heads.length, at_most=MOST_ELEMENTS // heads.pitch)
            for heads in (form.q, form.k, form.v, form.y)
            if heads.length.static is None
        ]
        if form.mask is not None and form.mask.by_row:
            scores = form.q.length * form.k.length
            bounds += [] if scores.static else [Condition(scores, at_most=MOST_ELEMENTS)]
        call = Call(
            "attention",
            self._arguments(tile, is_whole=is_whole),
            ((form.q.length, tile.queries), (Extent(form.q.heads), 1), (form.q.batch, 1)),
            tile.warps,
            tile.stages,
            registers=tile.registers,
        )
        unique = tuple(dict.fromkeys([*conditions, *tile.conditions, *bounds]))
        return hand_variant(
            signature,
            [call],
            kernel_text("attention_kernel"),
            unique,
            multiples=known,
            architectures=tile.architectures,
            is_optional=tile.is_optional,
        )

    def _arguments(self, tile: Tile, *, is_whole: bool) -> tuple[Passed, ...]:
        form = self.form
        q, k, v, y, mask = form.q, form.k, form.v, form.y, form.mask
        causal = form.causal
        return (
            Tensor(q.tensor), Tensor(k.tensor), Tensor(v.tensor),
            Tensor(q.tensor if mask is None else mask.tensor),
            Tensor(q.tensor if form.bias is None else form.bias), Tensor(y.tensor),
            Size(q.length), Size(k.length),
            q.heads, q.heads // k.heads,
            q.width, *parts_of(q.width), v.width, *parts_of(v.width),
            *layout_of(q), *layout_of(k), *layout_of(v), y.pitch, step_of(y),
            form.scale, form.softcap,
            causal is not None, causal is not None and causal.is_last,
            0 if causal is None else causal.window,
            kind_of(mask), fill_of(mask), *_lies(mask), form.bias is not None, inverse_of(form),
            _is_cut(q.length, tile.queries, is_whole=is_whole),
            _is_cut(k.length, tile.keys, is_whole=is_whole),
            tile.queries, tile.keys,
        )  # fmt: skip


def match(signature: RegionSignature) -> Attention | Refused | None:
    """Return the region as attention; None if it is something else."""
    narrow = without_rounding(signature)
    form = read_attention(signature if narrow is None else narrow[0])
    if not isinstance(form, AttentionForm):
        return form
    if narrow is not None:
        if not _LEAST_FACTOR <= abs(narrow[1]) <= 1.0 / _LEAST_FACTOR:
            return Refused("attention divided by a number whose reciprocal float32 does not have")
        if takes_form(form) and box_of(form.y) > _MOST_NARROW:
            # A rounding of its own behind copies of boxes takes less than to do without these.
            return Refused("attention by copies of wide boxes with a result in eight bits")
        form = replace(form, signature=signature, factor=narrow[1])
        if form.caches or form.y.width % _MULTIPLE or form.y.pitch % _MULTIPLE:
            return Refused("attention with a result in eight bits and caches, or of no vectors")
    for heads in (form.q, form.k, form.v, form.y):
        if heads.width % _VECTOR or not 0 < heads.width <= MOST_WIDTH:
            return Refused(
                f"attention of heads of {heads.width}, no multiple of {_VECTOR} up to {MOST_WIDTH}"
            )
        if (heads.length.static or 0) * heads.pitch > MOST_ELEMENTS or heads.pitch > MOST_ELEMENTS:
            return Refused("attention of a head that positions of 32 bits do not reach")
    if form.mask is not None and form.mask.by_row:
        scores = (form.q.length * form.k.length).static
        if (scores or 0) > MOST_ELEMENTS:
            return Refused("attention with a mask that positions of 32 bits do not reach")
    if form.q.heads > _MOST_HEADS or (form.q.batch.static or 0) > _MOST_HEADS:
        return Refused(f"attention of more than {_MOST_HEADS} heads or samples")
    reason = why_not_appended(form) if form.caches else None
    return Attention(form) if reason is None else Refused(reason)


ANCHOR = Anchor("attention", regions="ortkit.fusion.attention.cuda:regions")


def _is_cut(extent: Extent, block: int, *, is_whole: bool) -> bool:
    """Say whether the last block may be less than whole."""
    return bool(extent.static % block) if extent.static is not None else not is_whole


def _lies(mask: Mask | None) -> tuple[bool, bool, bool]:
    return (False,) * 3 if mask is None else (mask.by_row, mask.by_batch, mask.by_head)

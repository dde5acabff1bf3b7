"""Attention of packed rows on CUDA: which launches compute a region that is one."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.attention_packed import PackedForm, read_packed
from .attention_arguments import MOST_ELEMENTS, fill_of, kind_of, parts_of

#: By width of heads: queries and keys of a block, warps and stages; on Hopper and elsewhere.
_Tiles = tuple[tuple[int, tuple[int, int, int, int]], ...]
_HOPPER: _Tiles = ((64, (64, 128, 4, 2)), (128, (64, 64, 4, 3)), (256, (64, 32, 4, 2)))
_OTHERS: _Tiles = ((64, (64, 64, 4, 2)), (128, (64, 64, 4, 2)), (256, (64, 32, 4, 2)))
_VECTOR, _MOST_WIDTH, _MOST_BLOCKS = 8, 256, 65535


@dataclass(frozen=True)
class PackedAttention:
    """One attention of a region."""

    signature: RegionSignature
    packed: PackedForm

    def variants(self) -> tuple[VariantSource, ...]:
        """Return one for Hopper and one for all."""
        return self._variant(_HOPPER, (90,)), self._variant(_OTHERS, None)

    def _variant(self, tiles: _Tiles, architectures: tuple[int, ...] | None) -> VariantSource:
        form, rows = self.packed.form, self.packed.rows
        widest = max(form.q.width, form.v.width)
        queries, keys, warps, stages = next(tile for width, tile in tiles if widest <= width)
        call = Call(
            "packed_attention",
            self._arguments(queries, keys),
            ((form.q.length, queries), (Extent(form.q.heads), 1), (form.q.batch, 1)),
            warps,
            stages,
        )
        pitch = max(heads.pitch for heads in (form.q, form.k, form.v, form.y))
        bounds = () if rows.static else (Condition(rows, at_most=MOST_ELEMENTS // pitch),)
        text = kernel_text("attention_kernel") + kernel_text("attention_packed_kernel")
        return hand_variant(
            self.signature, [call], text, bounds, architectures=architectures,
            is_optional=architectures is not None,
        )  # fmt: skip

    def _arguments(self, queries: int, keys: int) -> tuple[Passed, ...]:
        packed, form = self.packed, self.packed.form
        q, k, v, y, mask = form.q, form.k, form.v, form.y, form.mask
        assert mask is not None, "`match` asks for one"
        return (
            *(Tensor(packed.tensor(item.tensor)) for item in (q, k, v, mask)),
            Tensor(packed.positions), Tensor(packed.indices), Tensor(packed.tensor(y.tensor)),
            Size(q.length), q.heads // k.heads,
            q.width, *parts_of(q.width), v.width, *parts_of(v.width),
            q.pitch, q.first, k.pitch, k.first, v.pitch, v.first, y.pitch,
            form.scale, form.softcap, kind_of(mask), fill_of(mask), queries, keys,
        )  # fmt: skip


def match(signature: RegionSignature) -> PackedAttention | Refused | None:
    """Return the region as attention of packed rows; None if it is something else."""
    packed = read_packed(signature)
    if not isinstance(packed, PackedForm):
        return packed
    form = packed.form
    mask = form.mask
    if mask is None or mask.by_row or mask.by_head or not mask.by_batch:
        return Refused("attention of packed rows without a mask of keys")
    if form.causal is not None or form.caches or form.bias is not None or form.q.stacked:
        return Refused("attention of packed rows that is causal, or has a cache or a bias")
    for heads in (form.q, form.k, form.v, form.y):
        if heads.width % _VECTOR or not 0 < heads.width <= _MOST_WIDTH:
            return Refused(f"attention of heads of {heads.width}")
    if form.q.heads > _MOST_BLOCKS or (form.q.batch.static or 0) > _MOST_BLOCKS:
        return Refused(f"attention of more than {_MOST_BLOCKS} heads or samples")
    return PackedAttention(signature, packed)

"""Attention on Hopper: one warp copies boxes of keys and values, groups of four compute."""

from __future__ import annotations

from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.hand import Call, Map, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.attention_cuda import AttentionForm, Heads
from .attention_arguments import fill_of, inverse_of, kind_of
from .attention_tiles import HopperTile, box_of

_ARCHITECTURES = (90,)
#: Queries of a group of four warps.
GROUP = 64
GROUP_WARPS = 4
_TEXTS = (
    "attention_hopper_group_kernel", "attention_hopper_kernel", "attention_hopper_entry_kernel",
)  # fmt: skip


def hopper_variant(form: AttentionForm, tile: HopperTile) -> VariantSource:
    """Return the launch of a form that `takes_form` holds for."""
    q, k, v, y, mask, causal = form.q, form.k, form.v, form.y, form.mask, form.causal
    is_bound = k.length.static is None or k.length.static % tile.keys > 0
    arguments: tuple[Passed, ...] = (
        heads_map(q, GROUP), heads_map(k, tile.keys), heads_map(v, tile.keys), heads_map(y, GROUP),
        _mask(form, tile),
        Tensor(q.tensor if form.bias is None else form.bias),
        Size(q.length), Size(k.length),
        q.heads, q.heads // k.heads, q.width, v.width, q.first, v.first,
        form.scale, form.softcap, causal is not None, causal is not None and causal.is_last,
        0 if causal is None else causal.window,
        kind_of(mask), fill_of(mask), mask is not None and mask.by_batch,
        mask is not None and mask.by_head, mask is not None and mask.by_row,
        form.bias is not None, is_bound,
        tile.keys, tile.stages, tile.groups, tile.in_turn, tile.registers,
        inverse_of(form),
    )  # fmt: skip
    sides = (q.length, GROUP * tile.groups), (Extent(q.heads), 1)
    if causal is not None:
        # Blocks that take longest begin first, of all heads.
        sides = sides[::-1]
    call = Call(
        "attention",
        arguments,
        (*sides, (q.batch, 1)),
        GROUP_WARPS,
        registers=tile.limit,
        is_gluon=True,
        # All groups, and four that copy, but for those that are there.
        workers=GROUP_WARPS * tile.groups,
    )
    return hand_variant(
        form.signature,
        [call],
        "".join(map(kernel_text, _TEXTS)),
        tile.conditions,
        architectures=_ARCHITECTURES,
        is_optional=True,
    )


def _mask(form: AttentionForm, tile: HopperTile) -> Passed:
    """Return a mask, or what is never read: one of each query as [batch, heads, rows, keys]."""
    mask = form.mask
    if mask is None or not mask.by_row:
        return Tensor(form.q.tensor if mask is None else mask.tensor)
    keys, rows = form.k.length, form.q.length
    batch = form.q.batch if mask.by_batch else ONE
    heads = Extent(form.q.heads if mask.by_head else 1)
    strides = (heads * rows * keys, rows * keys, keys)
    return Map(mask.tensor, (batch, heads, rows, keys), strides, (1, 1, GROUP, tile.keys))


def heads_map(heads: Heads, rows: int) -> Map:
    """Return heads as [batch, heads, rows, width], however they lie."""
    dims = (heads.batch, Extent(heads.heads), heads.length, Extent(heads.width))
    if heads.stacked:
        head = heads.length * Extent(heads.width)
        strides = (head * Extent(heads.heads), head, Extent(heads.width))
    else:
        strides = (heads.length * Extent(heads.pitch), Extent(heads.width), Extent(heads.pitch))
    return Map(heads.tensor, dims, strides, (1, 1, rows, box_of(heads)), heads.first)

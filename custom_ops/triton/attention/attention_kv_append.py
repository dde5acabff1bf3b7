"""Attention of few queries that appends to a cache: one pass over it copies and attends."""

from __future__ import annotations

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.attention_cuda import AttentionForm
from .attention_arguments import MOST_ELEMENTS, fill_of, kind_of, layout_of
from .attention_split_kv import MOST_QUERIES, MOST_ROWS, split_calls

#: Of each multiprocessor, 8 and 12 heads of 4,096 to 32,768 keys, for one sample and for eight:
#: what a block has to begin with takes longer than where keys are only read.
_BLOCKS_OF_EACH = 1.5
#: Keys and stages up to this many keys, 0.87 of the time of the larger ones at 512, and beyond.
_FEW = 1024
_SMALL, _LARGE = (32, 4), (64, 3)
#: Keys of a condition that are looked at together.
_LEAST_LOOK, _LOOK, _MOST_LOOK = 1024, 8192, 16384
_TEXTS = ("attention_kernel", "attention_split_kv_kernel", "attention_kv_append_kernel")


def why_not_appended(form: AttentionForm) -> str | None:
    """Return why there is no kernel for an attention with caches; None if there is one."""
    queries, mask = form.q.length.static, form.mask
    shared = form.q.heads // form.k.heads
    if queries is None or queries > MOST_QUERIES or queries * shared > MOST_ROWS:
        return f"attention with past keys of more queries than {MOST_QUERIES}, or any number"
    if mask is not None and (mask.by_row or mask.by_head):
        return "attention with past keys and a mask for each query or head"
    if form.bias is not None:
        return "attention with past keys of operands with a bias"
    if form.causal is not None and not form.causal.is_last:
        return "attention with past keys that not the last query sees all of"
    return None


def append_variant(form: AttentionForm) -> VariantSource:
    """Return the launches of a form that nothing stands in the way of (`why_not_appended`)."""
    assert form.caches is not None
    k, v = form.caches
    mask, causal = form.mask, form.causal
    widths = [max(16, 1 << (heads.width - 1).bit_length()) for heads in (form.q, form.v)]

    def arguments(
        blocks: tuple[Passed, ...], parts: int, rows: int, keys: int
    ) -> tuple[Passed, ...]:
        return (
            Tensor(form.q.tensor), Tensor(k.past), Tensor(v.past), Tensor(form.k.tensor),
            Tensor(form.v.tensor), Tensor(form.q.tensor if mask is None else mask.tensor),
            None if k.at is None else Tensor(k.at),
            Tensor(k.present), Tensor(v.present), *blocks,
            Size(form.q.length), Size(k.rows), Size(form.k.length),
            form.q.heads, form.q.heads // form.k.heads,
            form.q.width, widths[0], form.v.width, widths[1],
            *layout_of(form.q), *layout_of(form.k), *layout_of(form.v), form.scale, form.softcap,
            causal is not None, 0 if causal is None else causal.window,
            kind_of(mask), fill_of(mask), mask is not None and mask.by_batch, parts, rows, keys,
            _look(k.rows),
        )  # fmt: skip

    calls, scratch = split_calls(
        form, "append_part", arguments, (widths[1], 0), k.rows, _BLOCKS_OF_EACH, _tile(k.rows)
    )
    bounds = [
        Condition(k.rows, at_most=MOST_ELEMENTS // item.width)
        for item in (form.k, form.v)
        if k.rows.static is None
    ]
    return hand_variant(
        form.signature,
        calls,
        "".join(map(kernel_text, _TEXTS)),
        tuple(dict.fromkeys(bounds)),
        scratch=scratch,
    )


def _tile(rows: Extent) -> tuple[int, int]:
    return _SMALL if rows.static is not None and rows.static <= _FEW else _LARGE


def _look(rows: Extent) -> int:
    if rows.static is None:
        return _LOOK
    return min(max(_LEAST_LOOK, 1 << (rows.static - 1).bit_length()), _MOST_LOOK)

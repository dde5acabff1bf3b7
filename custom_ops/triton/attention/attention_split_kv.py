"""Attention of few queries, as in decoding: keys between blocks, whose results are put together.

One query of 12 heads is work for 12 of a GPU's 132 multiprocessors; between parts of the keys it
is work for all (Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023).
"""

from __future__ import annotations

from collections.abc import Callable

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import (
    Call,
    Passed,
    Scratch,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource

from ...forms.attention_cuda import AttentionForm
from .attention_arguments import MOST_ELEMENTS, fill_of, kind_of, layout_of, parts_of, step_of
from .attention_tiles import MULTIPROCESSORS

#: More queries are work enough without parts.
MOST_QUERIES = 16
#: Rows of a block, of all queries and the heads that share keys: least of a product, and most.
_LEAST_ROWS, MOST_ROWS = 16, 64
_BLOCKS_OF_EACH = 2
_MOST_PARTS = 64
_KEYS, _WARPS, _STAGES = 64, 4, 3
#: Rows of wide heads fill registers and shared memory.
_WIDE, _KEYS_OF_WIDE, _STAGES_OF_WIDE = 128, 32, 2
_JOINING_WARPS = 4
_FLOAT_BYTES = 4


def split_variant(form: AttentionForm) -> VariantSource | None:
    """Return the launches for few queries; None if there are many, a mask for each, or a bias."""
    q, k, v, mask = form.q, form.k, form.v, form.mask
    shared = q.heads // k.heads
    queries = q.length.static
    if queries is None or queries > MOST_QUERIES or queries * shared > MOST_ROWS:
        return None
    if form.bias is not None or (mask is not None and (mask.by_row or mask.by_head)):
        return None
    causal, widths = form.causal, parts_of(v.width)

    def arguments(
        blocks: tuple[Passed, ...], parts: int, rows: int, keys: int
    ) -> tuple[Passed, ...]:
        return (
            Tensor(q.tensor), Tensor(k.tensor), Tensor(v.tensor),
            Tensor(q.tensor if mask is None else mask.tensor), *blocks,
            Size(q.length), Size(k.length), q.heads, shared,
            q.width, *parts_of(q.width), v.width, *widths,
            *layout_of(q), *layout_of(k), *layout_of(v), form.scale, form.softcap,
            causal is not None, causal is not None and causal.is_last,
            0 if causal is None else causal.window,
            kind_of(mask), fill_of(mask), mask is not None and mask.by_batch,
            parts, rows, keys,
        )  # fmt: skip

    calls, scratch = split_calls(form, "attention_part", arguments, widths, k.length)
    bounds = [
        Condition(each.length, at_most=MOST_ELEMENTS // each.pitch)
        for each in (k, v)
        if each.length.static is None
    ]
    return hand_variant(
        form.signature,
        calls,
        kernel_text("attention_kernel") + kernel_text("attention_split_kv_kernel"),
        tuple(dict.fromkeys(bounds)),
        scratch=scratch,
    )


def split_calls(
    form: AttentionForm,
    function: str,
    arguments: Callable[[tuple[Passed, ...], int, int, int], tuple[Passed, ...]],
    widths: tuple[int, int],
    keys: Extent,
    blocks_of_each: float = _BLOCKS_OF_EACH,
    tile: tuple[int, int] = (_KEYS, _STAGES),
) -> tuple[tuple[Call, Call], tuple[Extent, ...]]:
    """Return the launches of parts and of what joins them, and the scratch between them.

    Args:
        form: Of up to `MOST_QUERIES` queries, a known number.
        function: What computes a part.
        arguments: Its arguments by the blocks of scratch, the parts, rows of a block (all queries
            and the heads that share keys) and keys of a block.
        widths: Of a row of the parts' results, as one or two powers of two.
        keys: How many there are, at least.
        blocks_of_each: For how many blocks of each multiprocessor there should be parts.
        tile: Keys of a block, and stages, where heads are not wide.
    """
    q, k, v = form.q, form.k, form.v
    shared, queries = q.heads // k.heads, q.length.static
    assert queries is not None
    rows = max(_LEAST_ROWS, 1 << (queries * shared - 1).bit_length())
    is_wide = max(q.width, v.width) > _WIDE
    block, stages = (_KEYS_OF_WIDE, _STAGES_OF_WIDE) if is_wide else tile
    parts = _parts(k.heads * (q.batch.static or 1), keys, block, blocks_of_each)
    units = q.batch * Extent(k.heads * parts * rows)
    one_each = units * Extent(_FLOAT_BYTES)
    scratch = (one_each * Extent(sum(widths)), one_each, one_each)
    blocks = (Scratch(0, "float32"), Scratch(1, "float32"), Scratch(2, "float32"))
    joined: tuple[Passed, ...] = (
        *blocks, Tensor(form.y.tensor), Size(q.length), q.heads, shared, v.width, *widths,
        form.y.pitch, step_of(form.y), parts, rows,
    )  # fmt: skip
    heads, one = (Extent(k.heads), 1), (q.batch, 1)
    part = Call(
        function,
        arguments(blocks, parts, rows, block),
        ((Extent(parts), 1), heads, one),
        _WARPS,
        stages,
    )
    join = Call(
        "attention_join",
        joined,
        ((Extent(queries * shared), 1), heads, one),
        _JOINING_WARPS,
        # Fused, each lane of a sum would round a product that the other does not: which of the
        # lanes that hold the same sum is read would make a difference.
        fp_fusion=False,
    )
    return (part, join), scratch


def _parts(heads: int, keys: Extent, block: int, blocks_of_each: float) -> int:
    """Return between how many blocks the keys of a head go, a power of two."""
    parts = 1
    while parts < _MOST_PARTS and parts * heads < MULTIPROCESSORS * blocks_of_each:
        parts *= 2
    while keys.static is not None and parts > 1 and parts * block >= 2 * keys.static:
        parts //= 2
    return parts

"""GroupQueryAttention of prompts on Hopper: rows are rotated into the result, and read from there.

The block that writes a part of the result is the only one that reads it before, so that rotated
rows need no memory of their own.
"""

from __future__ import annotations

from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.hand import Call, Passed, Tensor, kernel_text

from ...forms.attention_cuda import Heads
from ...forms.attention_grouped import GroupedForm
from .attention_hopper import GROUP, GROUP_WARPS, heads_map
from .attention_tiles import LEAST_WIDTH, HopperTile

_TEXTS = (
    "attention_hopper_group_kernel", "attention_hopper_kernel", "attention_hopper_entry_kernel",
    "attention_grouped_hopper_kernel",
)  # fmt: skip
#: By the most width of heads.
_TILES = (
    (64, HopperTile(1, 128, 2, 232, limit=128)),
    (128, HopperTile(2, 128, 2, 240)),
    (256, HopperTile(2, 64, 2, 240)),
)


def takes_prompts(form: GroupedForm) -> bool:
    """Say whether there is such a launch: copies are of heads wider than `LEAST_WIDTH`."""
    return form.sink is None and form.attention.q.width > LEAST_WIDTH


def tile_of(form: GroupedForm) -> HopperTile:
    """Return how a block is cut."""
    return next(tile for width, tile in _TILES if form.attention.q.width <= width)


def hopper_call(form: GroupedForm, sizes: tuple[Passed, ...]) -> Call:
    """Return the launch that reads rotated rows from the result, and writes the result there.

    Args:
        form: What is computed.
        sizes: New rows, elements of a head of the caches before, and rows of those after.
    """
    q, k, v, tile = form.attention.q, form.attention.k, form.attention.v, tile_of(form)
    result = len(form.attention.signature.inputs)
    rows = Heads(result, False, q.heads, q.width, q.batch, q.length, q.heads * q.width)
    arguments: tuple[Passed, ...] = (
        heads_map(rows, GROUP), heads_map(k, tile.keys), heads_map(v, tile.keys),
        heads_map(rows, GROUP), Tensor(v.tensor), Tensor(form.lengths), *sizes,
        q.heads, form.share, q.width, form.attention.scale, form.softcap, form.window,
        tile.keys, tile.stages, tile.groups, tile.in_turn, tile.registers,
    )  # fmt: skip
    return Call(
        "grouped_attention", arguments,
        ((Extent(q.heads), 1), (q.length, GROUP * tile.groups), (q.batch, 1)), GROUP_WARPS,
        registers=tile.limit, is_gluon=True, workers=GROUP_WARPS * tile.groups,
        text="".join(map(kernel_text, _TEXTS)),
    )  # fmt: skip

"""What the groups of `attention_hopper_kernel`, which stands after it, compute by themselves."""
# mypy: ignore-errors

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

#: A key whose mask is not above it is lost beside one that has none, see `attention_kernel`.
LOST: gl.constexpr = gl.constexpr(-5.0e3)
LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)
#: Keys of a mask that are looked at together.
SCAN: gl.constexpr = gl.constexpr(1024)
#: Blocks of a mask that there is room for: room is free where that for values is, a turn before.
MASK_STAGES: gl.constexpr = gl.constexpr(2)
#: Queries of a group of four warps.
GROUP: gl.constexpr = gl.constexpr(64)


class Known(NamedTuple):
    """What is known when the kernel is compiled: see `attention`."""

    shared: Any
    width: Any
    v_width: Any
    q_first: Any
    v_first: Any
    scale: Any
    cap: Any
    is_causal: Any
    is_last: Any
    window: Any
    mask: Any
    by_row: Any
    mask_batch: Any
    mask_heads: Any
    fill: Any
    has_bias: Any
    bound_keys: Any
    keys: Any
    stages: Any
    groups: Any
    in_turn: Any
    inverse: Any


@gluon.constexpr_function
def known_of(*all_of_it):
    """Return what is known as one value."""
    return Known(*all_of_it)


@gluon.constexpr_function
def without_mask(known):
    """Return the same without a mask: all keys that are taken in are seen alike."""
    return known._replace(mask=0)


@gluon.constexpr_function
def may_be_run(known):
    """Say whether what a mask keeps may be a run of keys, and the others are lost."""
    return not known.by_row and (known.mask == 2 or (known.mask == 1 and known.fill <= -5.0e3))


@gluon.constexpr_function
def factor_of(known):
    """Return what scores that `masked` returns are multiplied by: those in base 2."""
    return 1.4426950408889634 * (known.scale if known.cap == 0.0 and not adds(known) else 1.0)


@gluon.constexpr_function
def adds(known):
    """Say whether a mask is added to the scores, and does not choose among them."""
    return known.mask == 2 or (
        known.mask == 1 and not (known.by_row and known.fill == float("-inf"))
    )


@gluon.constexpr_function
def scores_layout(known):
    """Return where the scores of a group's queries lie."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, known.keys, 16])


@gluon.constexpr_function
def result_layout(width):
    """Return where a group's result lies."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.jit
def ends_of(first, last, plain, other_first, other_last, other_plain):
    """Put together what is known of two parts of a mask."""
    first, last = gl.minimum(first, other_first), gl.maximum(last, other_last)
    return first, last, plain + other_plain


@gluon.jit
def kept_keys(mask, keys, IS_CHOICE: gl.constexpr):
    """Return where the keys that a mask keeps begin and end, and whether they are a run.

    A run are keys in a row to which nothing is added. Where none is kept all are, and are no run.
    """
    FLAT: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    first = gl.zeros([SCAN], gl.int32, FLAT) + keys
    last = gl.zeros([SCAN], gl.int32, FLAT)
    plain = gl.zeros([SCAN], gl.int32, FLAT)
    for start in range(0, keys, SCAN):
        key_index = start + gl.arange(0, SCAN, FLAT)
        if IS_CHOICE:
            is_kept = gl.load(mask + key_index, mask=key_index < keys, other=0) != 0
            is_plain = is_kept
        else:
            value = gl.load(mask + key_index, mask=key_index < keys, other=LOST).to(gl.float32)
            is_kept = (value > LOST) | (value != value)
            is_plain = value == 0.0
        first = gl.minimum(first, gl.where(is_kept, key_index, keys))
        last = gl.maximum(last, gl.where(is_kept, key_index + 1, 0))
        plain += gl.where(is_plain, 1, 0)
    first, last, plain = gl.reduce((first, last, plain), 0, ends_of)
    is_run = (last > 0) & (plain == last - first)
    if last == 0:
        first = keys * 0
        last = keys
    return first, last, is_run


@gluon.jit
def bias_of_keys(mask, start, keys, known: gl.constexpr):
    """Return what is added to the scores of a block of keys; what lies beyond the last is lost."""
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    key_index = start + gl.arange(0, known.keys, FLAT)
    added = gl.load(mask + key_index, mask=key_index < keys, other=0)
    bias = gl.where(added != 0, 0.0, known.fill) if known.mask == 1 else added.to(gl.float32)
    return gl.where(key_index < keys, bias, float("-inf"))


@gluon.jit
def masked(scores, mask, known: gl.constexpr):
    """Return scores with a cap and a block of a mask in shared memory, see `factor_of`.

    Where rows have one mask it is what is added, see `bias_of_keys`.
    """
    SCORES: gl.constexpr = scores_layout(known)
    CAP: gl.constexpr = known.cap
    if CAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), of numbers that float32 has no end for
        bent = gl.exp2(scores * (2.0 * known.scale * LOG2E / CAP)) + 1.0
        scores = CAP - (2.0 * CAP) / bent
    elif adds(known):
        scores = scores * known.scale
    if known.mask != 0 and not known.by_row:
        scores += mask.load(gl.SliceLayout(0, SCORES))[None, :]
    elif known.mask == 2:
        scores += mask.load(SCORES).to(gl.float32)
    elif known.mask == 1:
        is_kept = mask.load(SCORES) != 0
        if adds(known):
            scores += gl.where(is_kept, 0.0, known.fill)
        else:
            scores = gl.where(is_kept, scores, float("-inf"))
    return scores


@gluon.jit
def soften(scores, top, total, start, position, seen, known: gl.constexpr, CHECKED: gl.constexpr):
    """Return the weights of a block of keys, and what is known of all blocks so far."""
    mask, end = seen
    key_index = start + gl.arange(0, known.keys, gl.SliceLayout(0, scores_layout(known)))
    scores = masked(scores, mask, known)
    factor: gl.constexpr = factor_of(known)
    if CHECKED:
        is_seen = (key_index < end)[None, :]
        if known.is_causal:
            is_seen = is_seen & (key_index[None, :] <= position[:, None])
        if known.window > 0:
            is_seen = is_seen & (key_index[None, :] > position[:, None] - known.window)
        scores = gl.where(is_seen, scores, float("-inf"))
    highest = gl.maximum(top, gl.max(scores, 1) * factor)
    shift = highest
    if CHECKED or known.mask != 0:
        shift = gl.where(highest == float("-inf"), 0.0, highest)
    weights = gl.exp2(scores * factor - shift[:, None])
    faded = gl.exp2(top - shift)
    total = total * faded + gl.sum(weights, 1)
    return weights, highest, total, faded


@gluon.jit
def biased(q, bias, known: gl.constexpr):
    """Add a row to the queries in shared memory, in float32."""
    W: gl.constexpr = q.shape[1]
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // W, W // 8], [4, 1], [1, 0])
    column = gl.arange(0, W, gl.SliceLayout(0, PLAIN))
    row = gl.load(bias + column, mask=column < known.width, other=0.0).to(gl.float32)
    tile = q.load(PLAIN)
    q.store((tile.to(gl.float32) + row[None, :]).to(q.dtype))
    fence_async_shared()

"""Near misses of attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from tests.spelling import masks
from tests.spelling.attention_parts import HEAD, HIDDEN, Style
from tests.spelling.case import ATTENTION, ROTARY, NearMiss
from tests.spelling.masks import HEADS
from tests.spelling.rotary import (
    LAST,
    WIDTH,
    angles_given,
    cos_sin,
    heads_first,
    rotate_half,
    turned,
)
from tests.spelling.writer import Writer

Scores = Callable[[Writer, str], str]
NONE: frozenset[str] = frozenset()


# ---- attention ----


def _core(
    *,
    axis: int = -1,
    after: Scores | None = None,
    before: Scores | None = None,
    turn: Sequence[int] = (0, 1, 3, 2),
    returned: bool = False,
    relu: bool = False,
) -> Callable[[Writer], tuple[str, ...]]:
    """Attention of given heads [B, H, 6, 6] with one thing changed."""

    def write(w: Writer) -> tuple[str, ...]:
        q, k, v = (w.input(name, "B", HEADS, 6, 6) for name in "qkv")
        scores = w.mul(w.op("MatMul", q, w.transpose(k, *turn)), w.number(6**-0.5))
        scores = before(w, scores) if before else scores
        p = w.op("Relu", scores) if relu else w.op("Softmax", scores, axis=axis)
        p = after(w, p) if after else p
        y = w.op("MatMul", p, v)
        return (y, p) if returned else (y,)

    return write


def _weighted(w: Writer, p: str) -> str:
    return w.op("Mul", p, w.input("factor", "B", HEADS, 6, 6))


def _masked_after(w: Writer, p: str) -> str:
    mask = w.input("attention_mask", "B", 1, 1, 6, kind="mask")
    return w.op("Mul", p, mask)


def _renormalized(w: Writer, p: str) -> str:
    masked = _masked_after(w, p)
    return w.div(masked, w.add(w.reduce("ReduceSum", masked, -1), w.number(1e-6)))


def _talking(w: Writer, scores: str) -> str:
    """Talking heads: heads are mixed before the softmax."""
    mixed = w.op("MatMul", w.transpose(scores, 0, 2, 3, 1), w.weight(HEADS, HEADS))
    return w.transpose(mixed, 0, 3, 1, 2)


def _scaled_by_input(w: Writer, scores: str) -> str:
    return w.op("Mul", scores, w.input("temperature", "B", HEADS, 1, 6, kind="positive"))


def _cap_other(w: Writer, scores: str) -> str:
    """3 tanh(scores / 5): no soft cap."""
    return w.mul(w.op("Tanh", w.div(scores, w.number(5))), w.number(3))


def _sink(w: Writer) -> str:
    """A learned logit for each head takes part in the softmax and is dropped after it."""
    q, k, v = (w.input(name, 2, HEADS, 6, 8) for name in "qkv")
    scores = w.mul(w.op("MatMul", q, w.transpose(k, 0, 1, 3, 2)), w.number(8**-0.5))
    sink = w.op("Expand", w.weight(1, HEADS, 1, 1), w.ints(2, HEADS, 6, 1))
    p = w.op("Softmax", w.op("Concat", scores, sink, axis=-1), axis=-1)
    return w.op("MatMul", w.slice(p, -1, 0, 6), v)


def _heads_mixed(w: Writer) -> str:
    """The heads of the values come in another order."""
    q, k, v = (w.input(name, "B", "S", HEADS, HEAD) for name in "qkv")
    q, k = w.transpose(q, 0, 2, 1, 3), w.transpose(k, 0, 2, 3, 1)
    order = w.array(np.array([1, 0, 3, 2], np.int64))
    v = w.op("Gather", w.transpose(v, 0, 2, 1, 3), order, axis=1)
    p = w.op("Softmax", w.mul(w.op("MatMul", q, k), w.number(HEAD**-0.5)), axis=-1)
    return w.reshape(w.transpose(w.op("MatMul", p, v), 0, 2, 1, 3), 0, 0, HIDDEN)


def _heads_interleaved(w: Writer) -> str:
    """The channels of a head are every H-th one: Reshape to [B, S, D, H]."""
    names = [w.input(name, "B", "S", HIDDEN) for name in "qkv"]
    q, k, v = (w.transpose(w.reshape(x, 0, 0, HEAD, HEADS), 0, 3, 1, 2) for x in names)
    scores = w.op("MatMul", q, w.transpose(k, 0, 1, 3, 2))
    p = w.op("Softmax", w.mul(scores, w.number(HEAD**-0.5)), axis=-1)
    return w.reshape(w.transpose(w.op("MatMul", p, v), 0, 2, 1, 3), 0, 0, HIDDEN)


def _joined_wrongly(w: Writer) -> str:
    """The result is joined without its Transpose back."""
    names = [w.input(name, 2, 6, HIDDEN) for name in "qkv"]
    q, k, v = (w.transpose(w.reshape(x, 2, 6, HEADS, HEAD), 0, 2, 1, 3) for x in names)
    scores = w.op("MatMul", q, w.transpose(k, 0, 1, 3, 2))
    p = w.op("Softmax", w.mul(scores, w.number(HEAD**-0.5)), axis=-1)
    return w.reshape(w.op("MatMul", p, v), 2, 6, HIDDEN)


def _tiled_heads(w: Writer) -> str:
    """Keys and values repeated as k0 k1 k0 k1, where GQA means k0 k0 k1 k1."""
    q = w.input("q", 2, HEADS, 6, HEAD)
    k, v = (w.op("Tile", w.input(n, 2, 2, 6, HEAD), w.ints(1, 2, 1, 1)) for n in "kv")
    scores = w.op("MatMul", q, w.transpose(k, 0, 1, 3, 2))
    p = w.op("Softmax", w.mul(scores, w.number(HEAD**-0.5)), axis=-1)
    return w.op("MatMul", p, v)


def _strictly_causal(w: Writer, scores: str) -> str:
    """Key index < query index; the first query sees the first key alone."""
    queries = w.unsqueeze(masks.counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(masks.counted(w, w.dim(scores, 3)), 0)
    first = w.op("Equal", keys, w.array(np.array(0, np.int64)))
    allowed = w.op("Or", first, w.op("Less", keys, queries))
    return w.op("Where", allowed, scores, w.number(masks.LOWEST))


def _anti_causal(w: Writer, scores: str) -> str:
    """Key index >= query index."""
    queries = w.unsqueeze(masks.counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(masks.counted(w, w.dim(scores, 3)), 0)
    return w.op("Where", w.op("GreaterOrEqual", keys, queries), scores, w.number(masks.LOWEST))


def _softly_causal(w: Writer, scores: str) -> str:
    """Minus two above the diagonal, which forbids nothing."""
    queries = w.unsqueeze(masks.counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(masks.counted(w, w.dim(scores, 3)), 0)
    allowed = w.op("LessOrEqual", keys, queries)
    return w.add(scores, w.op("Where", allowed, w.number(0), w.number(-2)))


def _causal_hole(w: Writer, scores: str) -> str:
    """A constant triangle with one more place forbidden, so that it is not causal."""
    mask = np.tril(np.ones((1, 1, 6, 6), np.bool_))
    mask[..., 4, 2] = False
    return w.op("Where", w.array(mask), scores, w.number(masks.LOWEST))


def _top_left(w: Writer, scores: str) -> str:
    """Causal from the top left although there is a past."""
    return masks.causal_range(w, scores)


def _inverted(w: Writer, scores: str) -> str:
    """Where(mask, -inf, scores): 1 means padding. The first key of a row is padding then."""
    blocked = w.cast(w.unsqueeze(masks.padding_input(w), 1, 2), np.bool_)
    return w.op("Where", blocked, w.number(-100.0), scores)


def _all_masked(low: float, *, chosen: bool = False) -> Scores:
    """A padding mask that leaves some rows nothing: NaN, a mean or raw scores, as written."""

    def mask(w: Writer, scores: str) -> str:
        given = w.input("attention_mask", "B", "S", kind="blank", dtype=np.int64)
        allowed = w.cast(w.unsqueeze(given, 1, 2), np.bool_)
        if chosen:
            return w.op("Where", allowed, scores, w.number(low))
        return w.add(scores, w.op("Where", allowed, w.number(0), w.number(low)))

    return mask


def _all_masked_product(w: Writer, scores: str) -> str:
    """Old BERT's, of rows that are padding only."""
    given = w.input("attention_mask", "B", "S", kind="blank", dtype=np.int64)
    mask = w.cast(w.unsqueeze(given, 1, 2), np.float32)
    return w.add(scores, w.mul(w.sub(w.number(1), mask), w.number(-10000.0)))


def _negative(w: Writer, scores: str) -> str:
    return w.mul(scores, w.number(-0.5))


def _attention(
    name: str, write: Callable[[Writer], str | tuple[str, ...]], never: frozenset[str] = NONE
) -> NearMiss:
    return NearMiss("attention", name, write, never, manners=3)


ATTENTION_MISSES = (
    _attention("weights over queries", _core(axis=-2), ATTENTION),
    _attention("weights over heads", _core(axis=1), ATTENTION),
    _attention("weights times a value", _core(after=_weighted), ATTENTION),
    _attention("masked after", _core(after=_masked_after), ATTENTION),
    _attention("renormalized", _core(after=_renormalized), ATTENTION),
    _attention("keys not turned", _core(turn=(0, 1, 2, 3)), NONE),
    _attention("heads turned", _core(turn=(0, 1, 3, 2), before=_talking), ATTENTION),
    _attention("weights returned", _core(returned=True), NONE),
    _attention("relu", _core(relu=True), ATTENTION),
    _attention("temperature", _core(before=_scaled_by_input), ATTENTION),
    _attention("other cap", _core(before=_cap_other), NONE),
    _attention("sink", _sink, NONE),
    _attention("heads mixed", _heads_mixed),
    _attention("heads interleaved", _heads_interleaved),
    _attention("joined wrongly", _joined_wrongly),
    _attention("heads tiled", _tiled_heads),
    _attention("strictly causal", Style(mask=_strictly_causal)),
    _attention("anti-causal", Style(mask=_anti_causal)),
    _attention("softly causal", Style(mask=_softly_causal)),
    _attention("causal with a hole", _core(before=_causal_hole)),
    _attention("top left with a past", Style(past=True, mask=_top_left)),
    _attention("inverted mask", Style(mask=_inverted)),
    _attention("all masked, old BERT", Style(mask=_all_masked_product)),
    _attention("all masked, lowest", Style(mask=_all_masked(masks.LOWEST))),
    _attention("all masked, infinite", Style(mask=_all_masked(-np.inf))),
    _attention("all masked, chosen", Style(mask=_all_masked(masks.LOWEST, chosen=True))),
    _attention("all masked, chosen infinite", Style(mask=_all_masked(-np.inf, chosen=True))),
    _attention("all masked, -1e9", Style(mask=_all_masked(-1e9), key="early")),
    _attention("all masked, guarded", Style(mask=_all_masked(-np.inf), guard=True)),
    _attention("all masked, guarded lowest", Style(mask=_all_masked(masks.LOWEST), guard=True)),
    _attention("negative scale", Style(mask=_negative, scale="none")),
    _attention("top left, cross", Style(cross=True, mask=_top_left)),
)


# ---- rotary ----


def _rotary(
    wrong: Literal["sign", "halves", "swapped", "other", "angle", "sine", "table"],
) -> Callable[[Writer], str]:
    """Llama's rotation with one thing changed."""

    def write(w: Writer) -> str:
        x = heads_first(w)
        angles = angles_given(w)
        cos, sin = cos_sin(w, angles)
        source = x
        if wrong == "table":
            second = w.mul(angles, w.number(1.5))
            cos = w.op("Cos", w.op("Concat", angles, second, axis=-1))
            sin = w.op("Sin", w.op("Concat", angles, second, axis=-1))
        if wrong == "angle":
            sin = cos_sin(w, w.mul(angles, w.number(2)))[1]
        if wrong == "sine":
            cos, sin = sin, cos
        if wrong == "other":
            source = w.input("z", "B", 2, "S", WIDTH)
        cos, sin = w.unsqueeze(cos, 1), w.unsqueeze(sin, 1)
        low, high = w.slice(source, -1, 0, WIDTH // 2), w.slice(source, -1, WIDTH // 2, LAST)
        if wrong == "sign":
            rotated = w.op("Concat", high, w.op("Neg", low), axis=-1)
        elif wrong == "halves":
            rotated = w.op("Concat", high, low, axis=-1)
        elif wrong == "swapped":
            rotated = w.op("Concat", w.op("Neg", low), high, axis=-1)
        else:
            rotated = rotate_half(w, source)
        return turned(w, x, cos, sin, rotated)

    return write


def _mixed(w: Writer) -> str:
    """Interleaved cosines, halves rotated."""
    x = heads_first(w)
    cos, sin = cos_sin(w, angles_given(w), double=False)
    shape = w.sizes(w.dim(cos, 0), w.dim(cos, 1), WIDTH // 2, 2)
    cos, sin = (
        w.unsqueeze(w.reshape(w.op("Expand", w.unsqueeze(v, 3), shape), 0, 0, WIDTH), 1)
        for v in (cos, sin)
    )
    return turned(w, x, cos, sin, rotate_half(w, x))


def _uneven(w: Writer) -> str:
    """The parts are six and ten channels."""
    x = heads_first(w)
    cos, sin = (w.unsqueeze(v, 1) for v in cos_sin(w, angles_given(w)))
    low, high = w.slice(x, -1, 0, 6), w.slice(x, -1, 6, LAST)
    return turned(w, x, cos, sin, w.op("Concat", w.op("Neg", high), low, axis=-1))


def _rotary_miss(name: str, write: Callable[[Writer], str], never: frozenset[str]) -> NearMiss:
    return NearMiss("rotary", name, write, never, manners=2)


ROTARY_MISSES = (
    # The other sign is a rotation by the negative angle: it may be fused with -sin.
    _rotary_miss("other sign", _rotary("sign"), NONE),
    _rotary_miss("no sign", _rotary("halves"), ROTARY),
    _rotary_miss("halves in place", _rotary("swapped"), ROTARY),
    _rotary_miss("of another value", _rotary("other"), ROTARY),
    _rotary_miss("another angle", _rotary("angle"), NONE),
    _rotary_miss("sine and cosine", _rotary("sine"), NONE),
    _rotary_miss("unequal halves", _rotary("table"), ROTARY),
    _rotary_miss("mixed", _mixed, ROTARY),
    _rotary_miss("uneven parts", _uneven, ROTARY),
)

MISSES = (*ATTENTION_MISSES, *ROTARY_MISSES)

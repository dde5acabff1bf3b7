"""Attention masks, as they are computed in exported models; T counts keys with the past."""

from __future__ import annotations

import numpy as np

from tests.spelling.writer import Writer

LOWEST = float(np.finfo(np.float32).min)
HEADS = 4
LONGEST = 16
"""Of masks and biases that are constants."""


def _index(value: int) -> np.ndarray:
    return np.array(value, np.int64)


def counted(w: Writer, length: str) -> str:
    """Range(0, length) of a length of shape [1]."""
    zero, one = w.array(_index(0)), w.array(_index(1))
    return w.op("Range", zero, w.squeeze(length, 0), one)


def _where(w: Writer, allowed: str, low: float = LOWEST) -> str:
    return w.op("Where", allowed, w.number(0), w.number(low))


def padding_input(w: Writer, keys: str = "S") -> str:
    """An int64 mask [B, T]: 1 where there is a token."""
    return w.input("attention_mask", "B", keys, kind="mask", dtype=np.int64)


# ---- what is added to the scores ----


def additive(w: Writer, scores: str, keys: str = "S") -> str:
    """A float mask [B, 1, 1, T] that the caller makes."""
    mask = w.input("attention_mask", "B", 1, 1, keys, kind="mask")
    return w.add(scores, w.mul(w.sub(w.number(1), mask), w.number(-10000.0)))


def bias_input(w: Writer, scores: str, keys: str = "S") -> str:
    """A float bias [B, 1, S, T] that the caller makes."""
    return w.add(scores, w.input("bias", "B", 1, "S", keys))


def bert(w: Writer, scores: str, low: float = -10000.0) -> str:
    """(1 - mask) * low of an int mask [B, T]."""
    mask = w.cast(w.unsqueeze(padding_input(w), 1, 2), np.float32)
    return w.add(scores, w.mul(w.sub(w.number(1), mask), w.number(low)))


def bert_lowest(w: Writer, scores: str) -> str:
    """Newer BERT: times the lowest float, axes inserted one by one."""
    mask = w.unsqueeze(w.unsqueeze(padding_input(w), 1), 2)
    inverted = w.sub(w.number(1), w.cast(mask, np.float32))
    return w.add(scores, w.mul(inverted, w.number(LOWEST)))


def masked_fill(w: Writer, scores: str, low: float = LOWEST) -> str:
    """DistilBERT and XLM: masked_fill(mask == 0, lowest)."""
    zero = w.op("Equal", w.unsqueeze(padding_input(w), 1, 2), w.array(_index(0)))
    shape = w.op("Shape", scores)
    return w.op("Where", w.op("Expand", zero, shape), w.number(low), scores)


def masked_fill_infinite(w: Writer, scores: str) -> str:
    """With minus infinity, without Expand."""
    allowed = w.cast(w.unsqueeze(padding_input(w), 1, 2), np.bool_)
    return w.op("Where", allowed, scores, w.number(-np.inf))


def bool_where(w: Writer, scores: str) -> str:
    """torch.export: Cast to bool, Where(mask, 0, lowest), added."""
    allowed = w.unsqueeze(w.cast(padding_input(w), np.bool_), 1, 2)
    return w.add(scores, _where(w, allowed))


def keras(w: Writer, scores: str) -> str:
    """Keras: scores - 1e9 * (1 - mask)."""
    mask = w.cast(w.unsqueeze(padding_input(w), 1, 2), np.float32)
    return w.sub(scores, w.mul(w.number(1e9), w.sub(w.number(1), mask)))


# ---- causal ----


def causal_constant(w: Writer, scores: str) -> str:
    """GPT-2: a constant lower triangle, cut to the length, Where."""
    triangle = w.array(np.tril(np.ones((1, 1, LONGEST, LONGEST), np.bool_)))
    allowed = triangle
    for axis in (2, 3):
        allowed = w.op("Slice", allowed, w.ints(0), w.dim(scores, axis), w.ints(axis))
    return w.op("Where", allowed, scores, w.number(LOWEST))


def causal_added(w: Writer, scores: str) -> str:
    """CLIP: a constant of minus infinity above the diagonal, cut and added."""
    triangle = np.triu(np.full((LONGEST, LONGEST), -np.inf, np.float32), 1)[None, None]
    mask = w.array(triangle)
    for axis in (2, 3):
        mask = w.op("Slice", mask, w.ints(0), w.dim(scores, axis), w.ints(axis))
    return w.add(scores, mask)


def causal_static(w: Writer, scores: str) -> str:
    """A constant of the right size; only for static models."""
    mask = np.triu(np.full((1, 1, 6, 6), LOWEST, np.float32), 1)
    return w.add(scores, w.array(mask))


def causal_range(w: Writer, scores: str) -> str:
    """torch.export: key index <= query index."""
    queries = w.unsqueeze(counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(counted(w, w.dim(scores, 3)), 0)
    allowed = w.unsqueeze(w.op("LessOrEqual", keys, queries), 0, 1)
    return w.add(scores, _where(w, allowed))


def causal_greater(w: Writer, scores: str) -> str:
    """JAX: query index >= key index, Where of the scores."""
    queries = w.reshape(counted(w, w.dim(scores, 2)), -1, 1)
    keys = w.reshape(counted(w, w.dim(scores, 3)), 1, -1)
    allowed = w.op("GreaterOrEqual", queries, keys)
    return w.op("Where", allowed, scores, w.number(-1e9))


def causal_trilu(w: Writer, scores: str) -> str:
    """OPT and BART: torch.triu of a matrix filled with the lowest float."""
    shape = w.sizes(w.dim(scores, 2), w.dim(scores, 3))
    full = w.op("Expand", w.number(LOWEST), shape)
    upper = w.op("Trilu", full, w.array(_index(1)), upper=1)
    return w.add(scores, w.unsqueeze(upper, 0, 1))


def causal_tril_bool(w: Writer, scores: str) -> str:
    """torch's own is_causal: ones, Trilu, Equal 0, Where minus infinity."""
    shape = w.sizes(w.dim(scores, 2), w.dim(scores, 3))
    ones = w.op("Expand", w.array(np.ones((1, 1), np.float32)), shape)
    zero = w.op("Equal", w.op("Trilu", ones, upper=0), w.array(np.array(0, np.float32)))
    blocked = w.op("Where", zero, w.number(-np.inf), w.number(0))
    return w.add(scores, blocked)


def causal_past(w: Writer, scores: str) -> str:
    """Queries stand after the past: key index <= query index + past length."""
    queries, keys = w.dim(scores, 2), w.dim(scores, 3)
    place = w.op("Add", counted(w, queries), w.op("Sub", keys, queries))
    allowed = w.op("LessOrEqual", w.unsqueeze(counted(w, keys), 0), w.unsqueeze(place, 1))
    return w.add(scores, _where(w, w.unsqueeze(allowed, 0, 1)))


def causal_padded(w: Writer, scores: str) -> str:
    """Llama: causal and padding, as booleans."""
    queries = w.unsqueeze(counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(counted(w, w.dim(scores, 3)), 0)
    causal = w.unsqueeze(w.op("LessOrEqual", keys, queries), 0, 1)
    padding = w.unsqueeze(w.cast(padding_input(w), np.bool_), 1, 2)
    return w.add(scores, _where(w, w.op("And", causal, padding)))


def causal_padded_sum(w: Writer, scores: str) -> str:
    """GPT-2 in transformers 4: both masks, one after the other."""
    return bert(w, causal_constant(w, scores), LOWEST)


def window(w: Writer, scores: str) -> str:
    """Mistral: causal, and not further back than 4."""
    queries = w.unsqueeze(counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(counted(w, w.dim(scores, 3)), 0)
    near = w.op("Greater", keys, w.op("Sub", queries, w.array(_index(4))))
    allowed = w.op("And", near, w.op("LessOrEqual", keys, queries))
    return w.add(scores, _where(w, w.unsqueeze(allowed, 0, 1)))


# ---- biases ----


def relative_constant(w: Writer, scores: str) -> str:
    """Swin and BEiT: a constant bias [1, H, S, S]; only for static models."""
    return w.add(scores, w.weight(1, HEADS, 6, 6))


def relative_gathered(w: Writer, scores: str) -> str:
    """T5: buckets of distances look up a row of biases for all heads."""
    queries = w.unsqueeze(counted(w, w.dim(scores, 2)), 1)
    keys = w.unsqueeze(counted(w, w.dim(scores, 3)), 0)
    distance = w.op("Sub", keys, queries)
    bucket = w.op("Clip", distance, w.array(_index(-8)), w.array(_index(8)))
    row = w.op("Gather", w.weight(17, HEADS), w.op("Add", bucket, w.array(_index(8))), axis=0)
    return w.add(scores, w.unsqueeze(w.transpose(row, 2, 0, 1), 0))


def relative_padded(w: Writer, scores: str) -> str:
    """T5's encoder: position bias plus padding mask, then added."""
    mask = w.cast(w.unsqueeze(padding_input(w), 1, 2), np.float32)
    padding = w.mul(w.sub(w.number(1), mask), w.number(LOWEST))
    bias = w.unsqueeze(w.weight(HEADS, LONGEST, LONGEST), 0)
    for axis in (2, 3):
        bias = w.op("Slice", bias, w.ints(0), w.dim(scores, axis), w.ints(axis))
    return w.add(scores, w.add(bias, padding))


def head_bias(w: Writer, scores: str) -> str:
    """A bias [H, S, S] without a batch axis, as many heads as samples; only for static models."""
    return w.add(scores, w.weight(HEADS, 6, 6))


def alibi(w: Writer, scores: str) -> str:
    """BLOOM: a slope of each head times the key's index, and a causal mask."""
    keys = w.cast(counted(w, w.dim(scores, 3)), np.float32)
    slopes = w.array(np.array([[[[0.5]], [[0.25]], [[0.125]], [[0.0625]]]], np.float32))
    return causal_range(w, w.add(scores, w.op("Mul", slopes, keys)))

"""GPT-2: a pre-norm decoder with learned positions and one projection for q, k and v.

Input: input_ids, int64 [batch, sequence].
Output: last_hidden_state, float32 [batch, sequence, width].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from models import attention, layers, masks
from models.builder import ALL, Dim, Size, Tape

SPELLINGS = ("dynamo", "ts", "dynamo23")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Radford et al. (2019), the small model."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    positions: int
    epsilon: float = 1e-5


CONFIGS = {
    "tiny": Config(vocabulary=128, width=64, layers=2, heads=4, positions=128),
    "full": Config(vocabulary=50257, width=768, layers=12, heads=12, positions=1024),
}


@dataclass(frozen=True)
class Context:
    """What every layer reads in addition to its input."""

    batch: Dim
    length: Dim
    mask: str
    """Bool [B, 1, S, S]; in TorchScript the table of all positions, from which layers slice."""


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the decoder without a cache; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    ids = b.input("input_ids", np.int64, "batch", "sequence")
    batch, length = b.dim(ids, 0), b.dim(ids, 1)
    ids = b.reshape(ids, -1, length)
    positions = b.unsqueeze(b.range(length), 0)
    words = layers.embedding(b, ids, "wte", config.vocabulary, config.width)
    places = layers.embedding(b, positions, "wpe", config.positions, config.width)
    x = b.op("Add", words, places)
    context = Context(batch, length, _mask(b, batch, length, positions, config))
    for i in range(config.layers):
        x = _layer(b, x, context, f"h.{i}", config)
    x = layers.layer_norm(b, x, "ln_f", config.width, config.epsilon)
    x = b.reshape(x, batch, length, config.width)
    b.output(x, "last_hidden_state", np.float32, "batch", "sequence", config.width)
    return b.model()


def _mask(b: Tape, batch: Dim, length: Dim, positions: str, config: Config) -> str:
    if not b.spelling.has_constant_nodes:
        return masks.packed_causal(b, batch, length, positions)
    every = np.tri(config.positions, dtype=np.bool_)
    return b.const(every[None, None])


def _layer(b: Tape, x: str, context: Context, name: str, config: Config) -> str:
    normed = layers.layer_norm(b, x, f"{name}.ln_1", config.width, config.epsilon)
    attended = _attention(b, normed, context, f"{name}.attn", config)
    with b.scope(name):
        x = b.op("Add", attended, x)
    normed = layers.layer_norm(b, x, f"{name}.ln_2", config.width, config.epsilon)
    inner = _conv1d(b, normed, context, f"{name}.mlp.c_fc", config.width, 4 * config.width)
    with b.scope(f"{name}.mlp.act"):
        inner = layers.gelu_tanh(b, inner)
    out = _conv1d(b, inner, context, f"{name}.mlp.c_proj", 4 * config.width, config.width)
    with b.scope(name):
        return b.op("Add", x, out)


def _conv1d(b: Tape, x: str, context: Context, name: str, fan_in: int, width: int) -> str:
    """Flatten to a matrix, multiply with Gemm, and give the shape back."""
    weight = b.weight(f"{name}.weight", fan_in, width)
    bias = b.weight(f"{name}.bias", width, scale=0.1)
    with b.scope(name):
        batch, length = context.batch, context.length
        if b.spelling.has_constant_nodes:
            batch, length = b.dim(x, 0), b.dim(x, 1)
        flat = b.reshape(x, -1, fan_in)
        product = b.op("Gemm", flat, weight, bias, alpha=1.0, beta=1.0, transA=0, transB=0)
        return b.reshape(product, batch, length, width)


def _attention(b: Tape, x: str, context: Context, name: str, config: Config) -> str:
    width = config.width // config.heads
    joint = _conv1d(b, x, context, f"{name}.c_attn", config.width, 3 * config.width)
    batch, length = context.batch, context.length
    with b.scope(name):
        if b.spelling.has_constant_nodes:
            merged = _attend_ts(b, joint, context.mask, config)
        else:
            parts = b.ops("Split", joint, outputs=3, axis=2, num_outputs=3)
            q, k, v = (attention.split_heads(b, p, batch, length, width) for p in parts)
            query, value = attention.heads_first(b, q), attention.heads_first(b, v)
            key = attention.transpose_keys(b, k)
            out = attention.attend(b, query, key, value, width, mask=context.mask)
            merged = attention.merge_heads(b, out, value, batch, length, config.width)
    return _conv1d(b, merged, context, f"{name}.c_proj", config.width, config.width)


def _attend_ts(b: Tape, joint: str, table: str, config: Config) -> str:
    """Attend as transformers' eager module is traced: scores divided, a slice of a table of
    all positions as the mask, and Where to put the lowest number."""
    width = config.width // config.heads
    sizes = b.ints(config.width, config.width, config.width)
    parts = b.ops("Split", joint, sizes, outputs=3, axis=2)
    q, k, v = (
        b.reshape(part, b.dim(part, 0), b.dim(part, 1), config.heads, width) for part in parts
    )
    query, value = attention.heads_first(b, q), attention.heads_first(b, v)
    key = b.transpose(k, 0, 2, 3, 1)
    scores = b.op("Div", b.op("MatMul", query, key), b.scalar(math.sqrt(width)))
    start, end = b.ints(0), b.as_vector(b.dim(scores, 3))
    allowed = b.slice(b.slice(table, start, end, 2), start, end, 3)
    scores = b.op("Where", allowed, scores, b.scalar(masks.LOWEST))
    out = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
    out = attention.heads_first(b, out)
    return b.reshape(out, b.dim(out, 0), b.dim(out, 1), config.width)

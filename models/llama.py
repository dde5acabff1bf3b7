"""Llama: RMS norms, rotary positions, grouped-query attention, SwiGLU.

Input: input_ids, int64 [batch, sequence].
Output: last_hidden_state, float32 [batch, sequence, width].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import attention, layers, masks, rotary
from models.builder import ALL, Dim, Size, Tape

SPELLINGS = ("dynamo", "ts", "dynamo23")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of a small Llama 2."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    inner: int
    epsilon: float = 1e-6

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads


CONFIGS = {
    "tiny": Config(vocabulary=128, width=64, layers=2, heads=4, key_heads=2, inner=160),
    "full": Config(vocabulary=32000, width=1024, layers=8, heads=16, key_heads=4, inner=2816),
}


@dataclass(frozen=True)
class Context:
    """What every layer reads in addition to its input."""

    batch: Dim
    length: Dim
    cos: str
    sin: str
    mask: str
    """Bool [B, 1, S, T], in TorchScript float."""


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the decoder without a cache; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    ids = b.input("input_ids", np.int64, "batch", "sequence")
    x = layers.embedding(b, ids, "embed_tokens", config.vocabulary, config.width)
    context = _context(b, ids, config)
    for i in range(config.layers):
        x, _, _ = decoder_layer(b, x, context, f"layers.{i}", config)
    x = layers.rms_norm(b, x, "norm", config.width, config.epsilon)
    b.output(x, "last_hidden_state", np.float32, "batch", "sequence", config.width)
    return b.model()


def _context(b: Tape, ids: str, config: Config) -> Context:
    batch, length = b.dim(ids, 0), b.dim(ids, 1)
    positions = b.unsqueeze(b.range(length), 0)
    if b.spelling.has_constant_nodes:
        mask = masks.filled_causal(b, batch, length)
    else:
        mask = masks.packed_causal(b, batch, length, positions)
        if b.spelling.opset >= 23:
            # Without position ids RotaryEmbedding wants a row for each batch entry.
            positions = b.op("Expand", positions, b.shape(batch, 1))
    cos, sin = rotary.cos_and_sin(b, positions, config.head_width)
    return Context(batch, length, cos, sin, mask)


def decoder_layer(
    b: Tape,
    x: str,
    context: Context,
    name: str,
    config: Config,
    past: tuple[str, str] | None = None,
) -> tuple[str, str, str]:
    """Write one layer.

    Args:
        b: The tape.
        x: [B, S, width].
        context: What all layers share.
        name: The layer's name.
        config: Sizes.
        past: Keys and values [B, key_heads, P, D] that come before those of `x`.

    Returns:
        The layer's output [B, S, width], and keys and values [B, key_heads, P + S, D].
    """
    normed = layers.rms_norm(b, x, f"{name}.input_layernorm", config.width, config.epsilon)
    attended, k, v = _attention(b, normed, context, f"{name}.self_attn", config, past)
    with b.scope(name):
        x = b.op("Add", x, attended)
    norm = f"{name}.post_attention_layernorm"
    out = _mlp(b, layers.rms_norm(b, x, norm, config.width, config.epsilon), name, config)
    with b.scope(name):
        return b.op("Add", x, out), k, v


def _mlp(b: Tape, x: str, name: str, config: Config) -> str:
    """Gate one projection with the SiLU of another."""
    sizes = (config.width, config.inner)
    gate = layers.linear(b, x, f"{name}.mlp.gate_proj", *sizes, bias=False)
    with b.scope(f"{name}.mlp.act_fn"):
        gate = layers.silu(b, gate)
    up = layers.linear(b, x, f"{name}.mlp.up_proj", *sizes, bias=False)
    with b.scope(f"{name}.mlp"):
        gated = b.op("Mul", gate, up)
    return layers.linear(b, gated, f"{name}.mlp.down_proj", config.inner, config.width, bias=False)


def _attention(
    b: Tape,
    x: str,
    context: Context,
    name: str,
    config: Config,
    past: tuple[str, str] | None,
) -> tuple[str, str, str]:
    width, heads, groups = config.head_width, config.heads, config.key_heads
    counts = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
    q, k, v = (
        layers.linear(b, x, f"{name}.{part}", config.width, count * width, bias=False)
        for part, count in counts.items()
    )
    with b.scope(name):
        split = (
            attention.split_heads(b, part, context.batch, context.length, width)
            for part in (q, k, v)
        )
        q, k, v = (attention.heads_first(b, part) for part in split)
        q = rotary.rotate(b, q, context.cos, context.sin, heads, width)
        k = rotary.rotate(b, k, context.cos, context.sin, groups, width)
        if past is not None:
            k, v = (b.op("Concat", p, new, axis=-2) for p, new in zip(past, (k, v), strict=True))
        keys, values = _repeat(b, k, context.batch, config), _repeat(b, v, context.batch, config)
        keys = attention.swap_last_axes(b, keys)
        merged = _attend(b, q, keys, values, context, config)
    out = layers.linear(b, merged, f"{name}.o_proj", config.width, config.width, bias=False)
    return out, k, v


def _attend(b: Tape, q: str, k: str, v: str, context: Context, config: Config) -> str:
    if b.spelling.has_constant_nodes:
        out = attention.attend_plainly(b, q, k, v, config.head_width, context.mask)
        out = attention.heads_first(b, out)
        return b.reshape(out, context.batch, context.length, config.width)
    out = attention.attend(b, q, k, v, config.head_width, mask=context.mask)
    return attention.merge_heads(b, out, v, context.batch, context.length, config.width)


def _repeat(b: Tape, x: str, batch: Dim, config: Config) -> str:
    """Repeat each of the key heads for the query heads that share it."""
    groups, shared = config.key_heads, config.heads // config.key_heads
    total = b.dim(x, 2)
    wide = b.unsqueeze(x, 2)
    shape = b.shape(batch, groups, shared, total, config.head_width)
    return b.reshape(layers.expand(b, wide, shape), batch, config.heads, total, config.head_width)

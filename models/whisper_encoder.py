"""Whisper's encoder: two 1-D convolutions, then a pre-norm encoder without a mask.

Input: input_features, float32 [batch, mel bins, frames].
Output: last_hidden_state, float32 [batch, frames / 2, width].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import attention, layers
from models.builder import ALL, Dim, Size, Tape

SPELLINGS = ("dynamo", "ts", "legacy", "dynamo23")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Radford et al. (2022), the tiny model."""

    width: int
    layers: int
    heads: int
    positions: int
    bins: int = 80
    epsilon: float = 1e-5


CONFIGS = {
    "tiny": Config(width=64, layers=2, heads=4, positions=40),
    "full": Config(width=384, layers=4, heads=6, positions=1500),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the encoder; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    dims = ("batch", config.bins, 2 * config.positions)
    features = b.input("input_features", np.float32, *dims)
    x = layers.gelu(b, _conv1d(b, features, "conv1", config.bins, config.width, 1))
    x = layers.gelu(b, _conv1d(b, x, "conv2", config.width, config.width, 2))
    places = b.parameter("embed_positions", _sinusoids(config.positions, config.width))
    x = b.op("Add", b.transpose(x, 0, 2, 1), places)
    for i in range(config.layers):
        x = _layer(b, x, b.dim(features, 0), f"layers.{i}", config)
    x = layers.layer_norm(b, x, "layer_norm", config.width, config.epsilon)
    b.output(x, "last_hidden_state", np.float32, "batch", config.positions, config.width)
    return b.model()


def _conv1d(b: Tape, x: str, name: str, fan_in: int, width: int, stride: int) -> str:
    kernel = b.weight(f"{name}.weight", width, fan_in, 3, scale=(2 / (3 * fan_in)) ** 0.5)
    bias = b.weight(f"{name}.bias", width, scale=0.1)
    with b.scope(name):
        sizes = {"kernel_shape": [3], "strides": [stride], "pads": [1, 1], "dilations": [1]}
        return b.op("Conv", x, kernel, bias, group=1, **sizes)


def _sinusoids(length: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the positions [length, width]: sines, then cosines, of falling frequency."""
    step = np.log(10000) / (width // 2 - 1)
    angles = np.outer(np.arange(length), np.exp(-step * np.arange(width // 2)))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _layer(b: Tape, x: str, batch: Dim, name: str, config: Config) -> str:
    normed = layers.layer_norm(b, x, f"{name}.self_attn_layer_norm", config.width, config.epsilon)
    context = _attention(b, normed, batch, f"{name}.self_attn", config)
    out = layers.linear(b, context, f"{name}.self_attn.out_proj", config.width, config.width)
    with b.scope(name):
        x = b.op("Add", x, out)
    normed = layers.layer_norm(b, x, f"{name}.final_layer_norm", config.width, config.epsilon)
    inner = layers.linear(b, normed, f"{name}.fc1", config.width, 4 * config.width)
    with b.scope(f"{name}.activation_fn"):
        inner = layers.gelu(b, inner)
    out = layers.linear(b, inner, f"{name}.fc2", 4 * config.width, config.width)
    with b.scope(name):
        return b.op("Add", x, out)


def _attention(b: Tape, x: str, batch: Dim, name: str, config: Config) -> str:
    """Attend with the scale on the queries, after their bias; the keys have no bias."""
    size, width = config.width, config.width // config.heads
    q = layers.linear(b, x, f"{name}.q_proj", size, size)
    with b.scope(name):
        q = b.op("Mul", q, b.scalar(width**-0.5))
    k = layers.linear(b, x, f"{name}.k_proj", size, size, bias=False)
    v = layers.linear(b, x, f"{name}.v_proj", size, size)
    with b.scope(name):
        if b.spelling.name == "legacy":
            return _attend_flat(b, q, k, v, b.dim(x, 0), config)
        if b.spelling.has_constant_nodes:
            batch = b.dim(x, 0)
        split = (b.reshape(p, batch, config.positions, config.heads, width) for p in (q, k, v))
        query, keys, value = split
        query, value = attention.heads_first(b, query), attention.heads_first(b, value)
        key = attention.transpose_keys(b, keys)
        out = attention.attend(b, query, key, value, 0, mask=None, guard=False)
        if not b.spelling.has_constant_nodes:
            # torch.export keeps a reshape to the shape that the product has already.
            out = b.reshape(out, batch, config.heads, config.positions, width)
        return attention.merge_heads(b, out, value, batch, config.positions, size)


def _attend_flat(b: Tape, q: str, k: str, v: str, batch: Dim, config: Config) -> str:
    """Attend as older modules do, with batch and heads as one axis of 3-D products."""
    width, length = config.width // config.heads, config.positions
    heads = [
        attention.heads_first(b, b.reshape(part, batch, -1, config.heads, width))
        for part in (q, k, v)
    ]
    many = b.op("Mul", b.as_scalar(batch), b.scalar(config.heads))
    joint = b.op("Concat", b.unsqueeze(many, 0), b.ints(-1), b.ints(width), axis=0)
    query, key, value = (b.op("Reshape", part, joint) for part in heads)
    scores = b.op("MatMul", query, b.transpose(key, 0, 2, 1))
    out = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
    apart = b.reshape(out, batch, config.heads, length, width)
    return b.reshape(attention.heads_first(b, apart), batch, length, config.width)

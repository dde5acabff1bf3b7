"""ViT (base): patches as tokens of a pre-norm encoder.

Input: pixel_values, float32 [batch, 3, image, image].
Output: last_hidden_state, float32 [batch, 1 + patches, width].
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
    """Sizes; the full ones are those of Dosovitskiy et al. (2020), ViT-B/16."""

    width: int
    layers: int
    heads: int
    image: int
    patch: int = 16
    epsilon: float = 1e-12

    @property
    def patches(self) -> int:
        """How many patches an image has."""
        return (self.image // self.patch) ** 2


CONFIGS = {
    "tiny": Config(width=64, layers=2, heads=4, image=64),
    "full": Config(width=768, layers=12, heads=12, image=224),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the encoder; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    pixels = b.input("pixel_values", np.float32, "batch", 3, config.image, config.image)
    x = _embed(b, pixels, config)
    mask = _mask(b, b.dim(pixels, 0), config)
    for i in range(config.layers):
        x = _layer(b, x, b.dim(pixels, 0), mask, f"layers.{i}", config)
    x = layers.layer_norm(b, x, "layernorm", config.width, config.epsilon)
    b.output(x, "last_hidden_state", np.float32, "batch", config.patches + 1, config.width)
    return b.model()


def _embed(b: Tape, pixels: str, config: Config) -> str:
    """Cut patches with a strided convolution, put the class token in front, add positions."""
    name, patch, width = "embeddings.patch_embeddings.projection", config.patch, config.width
    kernel = b.weight(f"{name}.weight", width, 3, patch, patch, scale=(3 * patch**2) ** -0.5)
    bias = b.weight(f"{name}.bias", width, scale=0.1)
    token = b.weight("embeddings.cls_token", 1, 1, width, scale=0.7)
    places = b.weight("embeddings.position_embeddings", 1, config.patches + 1, width, scale=0.5)
    square = {"kernel_shape": [patch, patch], "strides": [patch, patch]}
    with b.scope(name):
        x = b.op("Conv", pixels, kernel, bias, pads=[0] * 4, dilations=[1, 1], group=1, **square)
    with b.scope("embeddings.patch_embeddings"):
        if b.spelling.has_constant_nodes:
            kept = b.slice(b.op("Shape", x), b.ints(0), b.ints(2), 0)
            flat = b.op("Reshape", x, b.op("Concat", kept, b.ints(-1), axis=0))
        else:
            flat = b.reshape(x, b.dim(pixels, 0), width, config.patches)
        x = b.transpose(flat, 0, 2, 1)
    with b.scope("embeddings"):
        kept_size = -1 if b.spelling.has_constant_nodes else 1
        tokens = layers.expand(b, token, b.shape(b.dim(pixels, 0), kept_size, kept_size))
        return b.op("Add", b.op("Concat", tokens, x, axis=1), places)


def _mask(b: Tape, batch: Dim, config: Config) -> str | None:
    """Write the mask that forbids nothing, which torch.export leaves in the graph."""
    if b.spelling.has_constant_nodes:
        return None
    length = config.patches + 1
    column = b.const(np.ones((1, 1, length, 1), np.bool_))
    return b.op("Expand", column, b.shape(batch, 1, length, length))


def _layer(b: Tape, x: str, batch: Dim, mask: str | None, name: str, config: Config) -> str:
    normed = layers.layer_norm(b, x, f"{name}.layernorm_before", config.width, config.epsilon)
    context = _attention(b, normed, batch, mask, f"{name}.attention", config)
    out = layers.linear(b, context, f"{name}.attention.o_proj", config.width, config.width)
    with b.scope(name):
        x = b.op("Add", out, x)
    normed = layers.layer_norm(b, x, f"{name}.layernorm_after", config.width, config.epsilon)
    inner = layers.linear(b, normed, f"{name}.mlp.fc1", config.width, 4 * config.width)
    with b.scope(f"{name}.mlp.activation_fn"):
        inner = layers.gelu(b, inner)
    out = layers.linear(b, inner, f"{name}.mlp.fc2", 4 * config.width, config.width)
    with b.scope(name):
        return b.op("Add", out, x)


def _attention(b: Tape, x: str, batch: Dim, mask: str | None, name: str, config: Config) -> str:
    width, length = config.width // config.heads, config.patches + 1
    parts = [
        layers.linear(b, x, f"{name}.{part}", config.width, config.width)
        for part in ("q_proj", "k_proj", "v_proj")
    ]
    with b.scope(name):
        if b.spelling.has_constant_nodes:
            batch = b.dim(x, 0)
        q, k, v = (b.reshape(part, batch, length, config.heads, width) for part in parts)
        query, value = attention.heads_first(b, q), attention.heads_first(b, v)
        key = attention.transpose_keys(b, k)
        if b.spelling.name == "legacy":
            out = attention.attend_plainly(b, query, key, value, width, None)
            merged = attention.heads_first(b, out)
            return b.reshape(merged, b.dim(merged, 0), b.dim(merged, 1), config.width)
        guard = not b.spelling.has_constant_nodes
        out = attention.attend(b, query, key, value, width, mask=mask, guard=guard)
        return attention.merge_heads(b, out, value, batch, length, config.width)

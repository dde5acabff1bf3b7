"""SegFormer (MiT-B0): overlapping patches, sequence-reduced attention, a head of all scales.

Input: pixel_values, float32 [batch, 3, image, image].
Output: logits, float32 [batch, classes, image / 4, image / 4].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import attention, layers, tokens
from models.builder import ALL, Dim, Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, bare_conv, conv_block

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Xie et al. (2021), MiT-B0."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    reductions: tuple[int, ...]
    decoder: int
    classes: int
    image: int
    epsilon: float = 1e-5


CONFIGS = {
    "tiny": Config((8, 16), (1, 1), (1, 2), (4, 2), decoder=16, classes=5, image=32),
    "full": Config(
        (32, 64, 160, 256), (2, 2, 2, 2), (1, 2, 5, 8), (8, 4, 2, 1), 256, classes=150, image=512
    ),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the segmentation network; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", {**ALL, **CONV_SPELLINGS}[spelling], seed)
    x = b.input("pixel_values", np.float32, "batch", 3, config.image, config.image)
    batch = b.dim(x, 0)
    channels, side, features = 3, config.image, []
    for stage, width in enumerate(config.widths):
        side //= 2 if stage else 4
        x = _stage(b, x, stage, channels, side, batch, config)
        channels = width
        features.append((x, width, side))
    x = _head(b, features, batch, config)
    side = features[0][2]
    b.output(x, "logits", np.float32, "batch", config.classes, side, side)
    return b.model()


def _stage(b: Tape, x: str, stage: int, channels: int, side: int, batch: Dim, c: Config) -> str:
    """Embed patches that overlap, run the blocks, and return an image."""
    width, name = c.widths[stage], f"encoder.patch_embeddings.{stage}"
    conv = Conv(f"{name}.proj", channels, width, 3 if stage else 7, 2 if stage else 4)
    image = bare_conv(b, x, conv)
    with b.scope(name):
        x = tokens.image_to_tokens(b, image, batch, width, side * side)
    x = layers.layer_norm(b, x, f"{name}.layer_norm", width, c.epsilon)
    for i in range(c.depths[stage]):
        x = _block(b, x, f"encoder.block.{stage}.{i}", stage, side, batch, c)
    x = layers.layer_norm(b, x, f"encoder.layer_norm.{stage}", width, c.epsilon)
    with b.scope("encoder"):
        rows = b.dim(x, 0) if b.spelling.has_constant_nodes else batch
        return b.transpose(b.reshape(x, rows, side, side, width), 0, 3, 1, 2)


def _block(b: Tape, x: str, name: str, stage: int, side: int, batch: Dim, c: Config) -> str:
    width = c.widths[stage]
    normed = layers.layer_norm(b, x, f"{name}.layer_norm_1", width, c.epsilon)
    out = _attention(b, normed, f"{name}.attention", stage, side, batch, c)
    with b.scope(name):
        x = b.op("Add", out, x)
    normed = layers.layer_norm(b, x, f"{name}.layer_norm_2", width, c.epsilon)
    inner = layers.linear(b, normed, f"{name}.mlp.dense1", width, 4 * width)
    with b.scope(f"{name}.mlp.dwconv"):
        image = tokens.tokens_to_image(b, inner, batch, 4 * width, side, side)
    depthwise = Conv(f"{name}.mlp.dwconv.dwconv", 4 * width, 4 * width, 3, groups=4 * width)
    image = bare_conv(b, image, depthwise)
    with b.scope(f"{name}.mlp.dwconv"):
        inner = tokens.image_to_tokens(b, image, batch, 4 * width, side * side)
    with b.scope(f"{name}.mlp.intermediate_act_fn"):
        inner = layers.gelu(b, inner)
    out = layers.linear(b, inner, f"{name}.mlp.dense2", 4 * width, width)
    with b.scope(name):
        return b.op("Add", out, x)


def _attention(b: Tape, x: str, name: str, stage: int, side: int, batch: Dim, c: Config) -> str:
    """Let every token read an image that a strided convolution has made smaller."""
    width, heads, ratio = c.widths[stage], c.heads[stage], c.reductions[stage]
    each, length = width // heads, side * side
    query = layers.linear(b, x, f"{name}.self.query", width, width)
    read = x
    if ratio > 1:
        with b.scope(f"{name}.self"):
            image = tokens.tokens_to_image(b, x, batch, width, side, side)
        image = tokens.patches(b, image, Conv(f"{name}.self.sr", width, width, ratio, ratio), 0)
        length = (side // ratio) ** 2
        with b.scope(f"{name}.self"):
            read = tokens.image_to_tokens(b, image, batch, width, length)
        read = layers.layer_norm(b, read, f"{name}.self.layer_norm", width, c.epsilon)
    key = layers.linear(b, read, f"{name}.self.key", width, width)
    value = layers.linear(b, read, f"{name}.self.value", width, width)
    with b.scope(f"{name}.self"):
        if b.spelling.has_constant_nodes:
            batch = b.dim(query, 0)
        q, k, v = (
            b.reshape(part, batch, count, heads, each)
            for part, count in ((query, side * side), (key, length), (value, length))
        )
        q, v, k = (
            attention.heads_first(b, q),
            attention.heads_first(b, v),
            attention.transpose_keys(b, k),
        )
        out = attention.attend_plainly(b, q, k, v, each, None)
        out = attention.merge_heads(b, out, v, batch, side * side, width)
    return layers.linear(b, out, f"{name}.output.dense", width, width)


def _head(b: Tape, features: list[tuple[str, int, int]], batch: Dim, c: Config) -> str:
    """Project every scale to the same width, enlarge it, and join all, coarsest first."""
    finest, parts = features[0][2], []
    for stage, (image, width, side) in enumerate(features):
        with b.scope(f"decode_head.linear_c.{stage}"):
            x = tokens.image_to_tokens(b, image, batch, width, side * side)
        x = layers.linear(b, x, f"decode_head.linear_c.{stage}.proj", width, c.decoder)
        with b.scope("decode_head"):
            image = tokens.tokens_to_image(b, x, batch, c.decoder, side, side)
            # torch leaves the enlargement of the finest in, as a copy.
            parts.append(layers.enlarge(b, image, batch, c.decoder, finest, finest))
    with b.scope("decode_head"):
        joined = b.op("Concat", *reversed(parts), axis=1)
    wide = len(parts) * c.decoder
    fuse = Conv("decode_head.linear_fuse", wide, c.decoder, activation="relu")
    x = conv_block(b, joined, fuse)
    return bare_conv(b, x, Conv("decode_head.classifier", c.decoder, c.classes))

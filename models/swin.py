"""Swin (tiny): attention in windows that move by half a window, patches merged between stages.

Input: pixel_values, float32 [batch, 3, image, image].
Output: logits, float32 [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import attention, layers, tokens
from models.builder import ALL, Dim, FloatArray, Size, Tape
from models.conv import Conv

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Liu et al. (2021), Swin-T."""

    width: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: int
    image: int
    classes: int
    patch: int = 4
    epsilon: float = 1e-5


CONFIGS = {
    "tiny": Config(16, (2, 2), (2, 4), window=4, image=64, classes=10),
    "full": Config(96, (2, 2, 6, 2), (3, 6, 12, 24), window=7, image=224, classes=1000),
}


@dataclass(frozen=True)
class _Block:
    """One block: its parameters' name, and the sizes of what it reads."""

    name: str
    width: int
    heads: int
    side: int
    window: int
    shift: int


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the classifier; see `models.catalog.build`."""
    c = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    pixels = b.input("pixel_values", np.float32, "batch", 3, c.image, c.image)
    batch, side, width = b.dim(pixels, 0), c.image // c.patch, c.width
    name = "embeddings.patch_embeddings"
    x = tokens.patches(b, pixels, Conv(f"{name}.projection", 3, width, c.patch, c.patch), 0)
    with b.scope(name):
        x = tokens.image_to_tokens(b, x, batch, width, side * side)
    x = layers.layer_norm(b, x, "embeddings.norm", width, c.epsilon)
    for stage, depth in enumerate(c.depths):
        for i in range(depth):
            shift = c.window // 2 if i % 2 and side > c.window else 0
            name = f"encoder.layers.{stage}.blocks.{i}"
            block = _Block(name, width, c.heads[stage], side, c.window, shift)
            x = _block(b, x, batch, block, c)
        if stage + 1 < len(c.depths):
            x = _merge(b, x, batch, f"encoder.layers.{stage}.downsample", width, side, c)
            side, width = side // 2, 2 * width
    x = layers.layer_norm(b, x, "layernorm", width, c.epsilon)
    with b.scope("pooler"):
        pooled = b.reduce_mean(x, 1, keepdims=False)
    logits = layers.gemm(b, pooled, "classifier", width, c.classes)
    b.output(logits, "logits", np.float32, "batch", c.classes)
    return b.model()


def _block(b: Tape, x: str, batch: Dim, block: _Block, c: Config) -> str:
    name, width, side, size = block.name, block.width, block.side, block.window
    normed = layers.layer_norm(b, x, f"{name}.layernorm_before", width, c.epsilon)
    rows, per = side // size, size * size
    with b.scope(name):
        if b.spelling.has_constant_nodes:
            batch = b.dim(x, 0)
        image = b.reshape(normed, batch, side, side, width)
        image = _roll(b, image, block.shift, side)
        cut = b.reshape(image, batch, rows, size, rows, size, width)
        windows = b.reshape(b.transpose(cut, 0, 1, 3, 2, 4, 5), -1, per, width)
    out = _attention(b, windows, batch, block)
    with b.scope(name):
        cut = b.reshape(out, batch, rows, rows, size, size, width)
        image = b.reshape(b.transpose(cut, 0, 1, 3, 2, 4, 5), batch, side, side, width)
        image = _roll(b, image, -block.shift, side)
        x = b.op("Add", x, b.reshape(image, batch, side * side, width))
    normed = layers.layer_norm(b, x, f"{name}.layernorm_after", width, c.epsilon)
    inner = layers.linear(b, normed, f"{name}.intermediate.dense", width, 4 * width)
    with b.scope(f"{name}.intermediate"):
        inner = layers.gelu(b, inner)
    out = layers.linear(b, inner, f"{name}.output.dense", 4 * width, width)
    with b.scope(name):
        return b.op("Add", x, out)


def _roll(b: Tape, image: str, shift: int, side: int) -> str:
    """Move rows and columns up by `shift`, around the edges: `torch.roll` by -shift."""
    if not shift:
        return image
    cut, last = shift % side, np.iinfo(np.int64).max
    for axis in (1, 2):
        tail = b.slice(image, b.ints(cut), b.ints(last), axis)
        head = b.slice(image, b.ints(0), b.ints(cut), axis)
        image = b.op("Concat", tail, head, axis=axis)
    return image


def _attention(b: Tape, x: str, batch: Dim, block: _Block) -> str:
    """Let each token read the others of its window, with a bias by their distance."""
    name, width, heads = f"{block.name}.attention", block.width, block.heads
    per, each = block.window**2, width // heads
    q, k, v = (
        layers.linear(b, x, f"{name}.self.{part}", width, width)
        for part in ("query", "key", "value")
    )
    with b.scope(f"{name}.self"):
        q, k, v = (b.reshape(part, -1, per, heads, each) for part in (q, k, v))
        q, v = attention.heads_first(b, q), attention.heads_first(b, v)
        scores = b.op("MatMul", q, attention.transpose_keys(b, k))
        scores = b.op("Div", scores, b.scalar(float(each) ** 0.5))
        bias = b.folded_weight("Add", _bias(b, name, block))
        scores = b.op("Add", scores, bias)
        if block.shift:
            mask = _mask(block)
            shape = b.reshape(scores, batch, len(mask), heads, per, per)
            scores = b.op("Add", shape, b.const(mask[None, :, None]))
            scores = b.reshape(scores, -1, heads, per, per)
        out = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
        merged = b.reshape(attention.heads_first(b, out), -1, per, width)
    return layers.linear(b, merged, f"{name}.output.dense", width, width)


def _bias(b: Tape, name: str, block: _Block) -> FloatArray:
    """Look up a bias for each head and pair of places: [1, heads, size², size²]."""
    size = block.window
    table = b.draw(f"{name}.relative_position_bias", (2 * size - 1) ** 2, block.heads, scale=0.5)
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).reshape(2, -1)
    rows, columns = places[:, :, None] - places[:, None] + size - 1
    return np.ascontiguousarray(table[rows * (2 * size - 1) + columns].transpose(2, 0, 1)[None])


def _mask(block: _Block) -> FloatArray:
    """Forbid pairs that were no neighbours before the roll: [windows, size², size²]."""
    side, size = block.side, block.window
    part = np.zeros(side, np.int64)
    part[side - size :], part[side - block.shift :] = 1, 2
    region = part[:, None] * 3 + part
    cut = region.reshape(side // size, size, side // size, size).transpose(0, 2, 1, 3)
    flat = cut.reshape(-1, size * size)
    apart = flat[:, :, None] != flat[:, None]
    return np.where(apart, np.float32(-100), np.float32(0)).astype(np.float32)


def _merge(b: Tape, x: str, batch: Dim, name: str, width: int, side: int, c: Config) -> str:
    """Join each two by two tokens, and halve the width of that."""
    with b.scope(name):
        if b.spelling.has_constant_nodes:
            batch = b.dim(x, 0)
        image = b.reshape(x, batch, side, side, width)
        parts, last = [], np.iinfo(np.int64).max
        for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
            part = image
            for axis, start in ((1, row), (2, column)):
                bounds = b.ints(start), b.ints(last), b.ints(axis), b.ints(2)
                part = b.op("Slice", part, *bounds)
            parts.append(part)
        joined = b.op("Concat", *parts, axis=-1)
        x = b.reshape(joined, batch, -1, 4 * width)
    x = layers.layer_norm(b, x, f"{name}.norm", 4 * width, c.epsilon)
    return layers.linear(b, x, f"{name}.reduction", 4 * width, 2 * width, bias=False)

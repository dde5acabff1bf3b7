"""A U-shaped restoration net: NAFNet's blocks between Restormer's pixel (un)shuffles.

Input: x, float32 [batch, 3, image, image].
Output: restored, float32 like x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import tokens
from models.builder import Dim, Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, bare_conv, global_pool

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Chen et al. (2022), NAFNet of width 32, shortened."""

    width: int
    blocks: tuple[int, ...]
    """Blocks of each level down, then of the middle."""
    image: int
    epsilon: float = 1e-6


CONFIGS = {
    "tiny": Config(8, (1, 1, 1), image=32),
    "full": Config(32, (1, 1, 1, 8, 1), image=256),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the network; see `models.catalog.build`."""
    c = CONFIGS[size]
    b = Tape("main_graph", CONV_SPELLINGS[spelling], seed)
    image = b.input("x", np.float32, "batch", 3, c.image, c.image)
    batch, side, width = b.dim(image, 0), c.image, c.width
    x = bare_conv(b, image, Conv("intro", 3, width, 3))
    skips = []
    *levels, middle = c.blocks
    for level, depth in enumerate(levels):
        x = _blocks(b, x, f"encoders.{level}", depth, width, c)
        skips.append(x)
        x = _down(b, x, f"downs.{level}", batch, width, side)
        side, width = side // 2, 2 * width
    x = _blocks(b, x, "middle_blks", middle, width, c)
    for level, skip in enumerate(reversed(skips)):
        x = bare_conv(b, x, Conv(f"ups.{level}.0", width, 2 * width))
        width //= 2
        with b.scope(f"ups.{level}"):
            x = b.op("Add", tokens.pixel_shuffle(b, x), skip)
        x = _blocks(b, x, f"decoders.{level}", 1, width, c)
    x = bare_conv(b, x, Conv("ending", width, 3, 3, gain=0.5))
    b.output(b.op("Add", x, image), "restored", np.float32, "batch", 3, c.image, c.image)
    return b.model()


def _down(b: Tape, x: str, name: str, batch: Dim, width: int, side: int) -> str:
    """Halve the channels by a convolution, and turn each two by two pixels into channels."""
    x = bare_conv(b, x, Conv(f"{name}.0", width, width // 2, 3))
    with b.scope(name):
        return tokens.pixel_unshuffle(b, x, batch, width // 2, side, side)


def _blocks(b: Tape, x: str, name: str, depth: int, width: int, c: Config) -> str:
    for i in range(depth):
        x = _block(b, x, f"{name}.{i}", width, c)
    return x


def _block(b: Tape, x: str, name: str, width: int, c: Config) -> str:
    y = tokens.image_norm(b, x, f"{name}.norm1", width, c.epsilon)
    y = bare_conv(b, y, Conv(f"{name}.conv1", width, 2 * width))
    y = bare_conv(b, y, Conv(f"{name}.conv2", 2 * width, 2 * width, 3, groups=2 * width))
    y = _gate(b, y, name, width)
    with b.scope(f"{name}.sca"):
        pooled = global_pool(b, y)
    weights = bare_conv(b, pooled, Conv(f"{name}.sca.1", width, width))
    with b.scope(name):
        y = b.op("Mul", y, weights)
    y = bare_conv(b, y, Conv(f"{name}.conv3", width, width))
    with b.scope(name):
        x = b.op("Add", x, tokens.scale(b, y, f"{name}.beta", 1, width, 1, 1))
    y = tokens.image_norm(b, x, f"{name}.norm2", width, c.epsilon)
    y = bare_conv(b, y, Conv(f"{name}.conv4", width, 2 * width))
    y = _gate(b, y, f"{name}.sg", width)
    y = bare_conv(b, y, Conv(f"{name}.conv5", width, width))
    with b.scope(name):
        return b.op("Add", x, tokens.scale(b, y, f"{name}.gamma", 1, width, 1, 1))


def _gate(b: Tape, x: str, name: str, width: int) -> str:
    """Multiply one half of the channels by the other."""
    with b.scope(name):
        first, second = b.ops("Split", x, b.ints(width, width), outputs=2, axis=1)
        return b.op("Mul", first, second)

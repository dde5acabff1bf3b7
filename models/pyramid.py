"""A feature pyramid detector: residual stages, upsampled sums, heads that all levels share.

Input: x, float32 [batch, 3, image, image].
Outputs: scores, float32 [batch, cells * anchors, classes]; deltas, float32
[batch, cells * anchors, 4]; cells are those of all levels, finest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import layers
from models.builder import Dim, Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, bare_conv, conv_block
from models.resnet50 import image_input

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Lin et al. (2017), RetinaNet, on ResNet-18."""

    widths: tuple[int, ...]
    depth: int
    pyramid: int
    tower: int
    anchors: int
    classes: int
    image: int


CONFIGS = {
    "tiny": Config((8, 16, 24), 1, pyramid=8, tower=1, anchors=2, classes=3, image=64),
    "full": Config((64, 128, 256, 512), 2, 128, tower=2, anchors=9, classes=80, image=320),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the detector; see `models.catalog.build`."""
    c = CONFIGS[size]
    b = Tape("main_graph", CONV_SPELLINGS[spelling], seed)
    x = image_input(b, c.image)
    batch = b.dim(x, 0)
    stem = Conv("stem", 3, c.widths[0], 7, 2, activation="relu")
    x = conv_block(b, x, stem)
    x = b.op(
        "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, dilations=[1, 1],
        ceil_mode=0,
    )  # fmt: skip
    channels, side, features = c.widths[0], c.image // 4, []
    for level, width in enumerate(c.widths):
        side //= 2 if level else 1
        for i in range(c.depth):
            x = _residual(b, x, f"layer{level}.{i}", channels, width, 2 if level and not i else 1)
            channels = width
        features.append((x, width, side))
    levels = _top_down(b, features[1:], batch, c)
    scores = [_head(b, x, "cls", batch, c.classes, c) for x in levels]
    deltas = [_head(b, x, "box", batch, 4, c) for x in levels]
    b.output(b.op("Concat", *scores, axis=1), "scores", np.float32, "batch", "cells", c.classes)
    b.output(b.op("Concat", *deltas, axis=1), "deltas", np.float32, "batch", "cells", 4)
    return b.model()


def _residual(b: Tape, x: str, name: str, channels: int, width: int, stride: int) -> str:
    first = Conv(f"{name}.conv1", channels, width, 3, stride, activation="relu")
    y = conv_block(b, x, first)
    y = conv_block(b, y, Conv(f"{name}.conv2", width, width, 3, gain=0.4))
    if channels != width or stride != 1:
        shortcut = Conv(f"{name}.downsample", channels, width, stride=stride, gain=0.7)
        x = conv_block(b, x, shortcut)
    with b.scope(name):
        return b.op("Relu", b.op("Add", y, x))


def _top_down(b: Tape, features: list[tuple[str, int, int]], batch: Dim, c: Config) -> list[str]:
    """Add each coarser level, enlarged, to a projection of the finer; finest first."""
    inner, levels = "", []
    for level, (x, width, side) in reversed(list(enumerate(features))):
        lateral = bare_conv(b, x, Conv(f"fpn.inner.{level}", width, c.pyramid, gain=0.7))
        if inner:
            with b.scope("fpn"):
                larger = layers.enlarge(b, inner, batch, c.pyramid, side, side, mode="nearest")
                lateral = b.op("Add", lateral, larger)
        inner = lateral
        out = Conv(f"fpn.layer.{level}", c.pyramid, c.pyramid, 3, gain=0.7)
        levels.append(bare_conv(b, inner, out))
    return levels[::-1]


def _head(b: Tape, x: str, name: str, batch: Dim, width: int, c: Config) -> str:
    """Predict [batch, cells * anchors, width] of one level."""
    for i in range(c.tower):
        tower = Conv(f"head.{name}.{i}", c.pyramid, c.pyramid, 3, activation="relu")
        x = bare_conv(b, x, tower)
    x = bare_conv(b, x, Conv(f"head.{name}.out", c.pyramid, c.anchors * width, 3))
    if b.spelling.has_constant_nodes:
        batch = b.dim(x, 0)
    with b.scope(f"head.{name}"):
        height, wide = b.dim(x, 2), b.dim(x, 3)
        split = b.reshape(x, batch, c.anchors, width, height, wide)
        return b.reshape(b.transpose(split, 0, 3, 4, 1, 2), batch, -1, width)

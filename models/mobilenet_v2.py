"""MobileNetV2: inverted residuals with depthwise convolutions and ReLU6.

Input: x, float32 [batch, 3, height, width] (in "keras" channels last).
Output: logits, float32 [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx

from models.builder import Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, classify, conv_block
from models.resnet50 import image_input

SPELLINGS = tuple(CONV_SPELLINGS)


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Sandler et al. (2018), table 2."""

    stages: tuple[tuple[int, int, int, int], ...]
    """Expansion, channels, repeats, stride of the first."""
    stem: int
    top: int
    image: int
    classes: int


CONFIGS = {
    "tiny": Config(
        stages=((1, 8, 1, 1), (6, 16, 2, 2), (6, 24, 1, 2), (6, 32, 1, 1)),
        stem=16,
        top=64,
        image=64,
        classes=10,
    ),
    "full": Config(
        stages=(
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ),
        stem=32,
        top=1280,
        image=224,
        classes=1000,
    ),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the classifier; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", CONV_SPELLINGS[spelling], seed)
    x = image_input(b, config.image)
    x = _conv(b, x, Conv("conv_stem.first_conv", 3, config.stem, 3, 2, activation="relu6"))
    channels, index = config.stem, 0
    for expansion, width, repeats, stride in config.stages:
        for i in range(repeats):
            x = _block(b, x, f"layer.{index}", channels, width, expansion, 1 if i else stride)
            channels, index = width, index + 1
    x = _conv(b, x, Conv("conv_1x1", channels, config.top, activation="relu6"))
    logits = classify(b, x, "classifier", config.top, config.classes)
    b.output(logits, "logits", np.float32, "batch", config.classes)
    return b.model()


def _conv(b: Tape, x: str, conv: Conv) -> str:
    """Convolve with TensorFlow's padding, which TorchScript writes out even where it is 0."""
    return conv_block(b, x, replace(conv, padding="computed"))


def _block(
    b: Tape, x: str, name: str, channels: int, width: int, expansion: int, stride: int
) -> str:
    inner, y = channels * expansion, x
    if expansion > 1:
        y = _conv(b, y, Conv(f"{name}.expand_1x1", channels, inner, activation="relu6"))
    depthwise = Conv(f"{name}.conv_3x3", inner, inner, 3, stride, inner, activation="relu6")
    y = _conv(b, y, depthwise)
    y = _conv(b, y, Conv(f"{name}.reduce_1x1", inner, width, gain=0.7))
    if stride != 1 or channels != width:
        return y
    with b.scope(name):
        return b.op("Add", x, y)

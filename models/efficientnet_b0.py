"""EfficientNet-B0: inverted residuals with squeeze-and-excitation and SiLU.

Input: x, float32 [batch, 3, height, width] (in "keras" channels last).
Output: logits, float32 [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx

from models.builder import Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, bare_conv, classify, conv_block, global_pool
from models.resnet50 import image_input

SPELLINGS = tuple(CONV_SPELLINGS)


@dataclass(frozen=True)
class Stage:
    """Equal blocks; the first changes the width and the size of the image."""

    expansion: int
    kernel: int
    width: int
    repeats: int
    stride: int


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Tan and Le (2019), table 1."""

    stages: tuple[Stage, ...]
    stem: int
    top: int
    image: int
    classes: int


CONFIGS = {
    "tiny": Config(
        stages=(Stage(1, 3, 8, 1, 1), Stage(6, 3, 12, 2, 2), Stage(6, 5, 16, 1, 2)),
        stem=16,
        top=64,
        image=64,
        classes=10,
    ),
    "full": Config(
        stages=(
            Stage(1, 3, 16, 1, 1),
            Stage(6, 3, 24, 2, 2),
            Stage(6, 5, 40, 2, 2),
            Stage(6, 3, 80, 3, 2),
            Stage(6, 5, 112, 3, 1),
            Stage(6, 5, 192, 4, 2),
            Stage(6, 3, 320, 1, 1),
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
    stem = Conv("embeddings", 3, config.stem, 3, 2, activation="silu", padding="same")
    x = conv_block(b, x, stem)
    channels, index = config.stem, 0
    for stage in config.stages:
        for i in range(stage.repeats):
            block = stage if i == 0 else replace(stage, stride=1)
            x = _block(b, x, f"encoder.blocks.{index}", channels, block)
            channels, index = stage.width, index + 1
    top = Conv("encoder.top", channels, config.top, activation="silu", padding="same")
    logits = classify(b, conv_block(b, x, top), "classifier", config.top, config.classes)
    b.output(logits, "logits", np.float32, "batch", config.classes)
    return b.model()


def _block(b: Tape, x: str, name: str, channels: int, stage: Stage) -> str:
    inner, y = channels * stage.expansion, x
    if stage.expansion > 1:
        expand = Conv(f"{name}.expansion", channels, inner, activation="silu", padding="same")
        y = conv_block(b, y, expand)
    depthwise = Conv(
        f"{name}.depthwise_conv",
        inner,
        inner,
        stage.kernel,
        stage.stride,
        inner,
        activation="silu",
        padding="same",
    )
    y = _squeeze_excite(b, conv_block(b, y, depthwise), f"{name}.squeeze_excite", inner, channels)
    y = conv_block(b, y, Conv(f"{name}.projection", inner, stage.width, gain=1.3, padding="same"))
    if stage.stride != 1 or channels != stage.width:
        return y
    with b.scope(name):
        return b.op("Add", y, x)


def _squeeze_excite(b: Tape, x: str, name: str, inner: int, channels: int) -> str:
    """Scale each channel by what two small convolutions make of the channels' averages."""
    squeezed = max(channels // 4, 2)
    with b.scope(f"{name}.squeeze"):
        y = global_pool(b, x)
    reduce = Conv(f"{name}.reduce", inner, squeezed, activation="silu", padding="same")
    y = bare_conv(b, y, reduce)
    y = bare_conv(b, y, Conv(f"{name}.expand", squeezed, inner, padding="same"))
    with b.scope(name):
        return b.op("Mul", x, b.op("Sigmoid", y))

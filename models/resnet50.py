"""ResNet-50: bottleneck blocks with ReLU.

Input: x, float32 [batch, 3, height, width] (in "keras" channels last).
Output: logits, float32 [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models.builder import KERAS, Size, Tape
from models.conv import SPELLINGS as CONV_SPELLINGS
from models.conv import Conv, classify, conv_block, nchw

SPELLINGS = tuple(CONV_SPELLINGS)


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of He et al. (2015)."""

    depths: tuple[int, ...]
    base: int
    """Width of the first stage's inner convolutions."""
    image: int
    classes: int


CONFIGS = {
    "tiny": Config(depths=(1, 2, 1, 1), base=8, image=64, classes=10),
    "full": Config(depths=(3, 4, 6, 3), base=64, image=224, classes=1000),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the classifier; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", CONV_SPELLINGS[spelling], seed)
    x = image_input(b, config.image)
    x = conv_block(b, x, Conv("embedder", 3, config.base, 7, 2, activation="relu"))
    x = _max_pool(b, x)
    channels = config.base
    for stage, depth in enumerate(config.depths):
        width = config.base << stage
        for i in range(depth):
            stride = 2 if stage and not i else 1
            name = f"encoder.stages.{stage}.layers.{i}"
            x = _bottleneck(b, x, name, channels, width, stride)
            channels = 4 * width
    logits = classify(b, x, "classifier", channels, config.classes)
    b.output(logits, "logits", np.float32, "batch", config.classes)
    return b.model()


def image_input(b: Tape, size: int | str, other: int | str | None = None) -> str:
    """Declare the image, float32 [batch, 3, size, other or size]; channels last in "keras"."""
    wide = size if other is None else other
    dims = (size, wide, 3) if b.spelling == KERAS else (3, size, wide)
    return b.input("x", np.float32, "batch", *dims)


def _max_pool(b: Tape, x: str) -> str:
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2]}
    if b.spelling != KERAS:
        return b.op("MaxPool", x, pads=[1] * 4, dilations=[1, 1], ceil_mode=0, **attributes)
    # Keras pads with zeros, which after a ReLU is no different from minus infinity.
    padded = b.op("Pad", x, b.ints(0, 1, 1, 0, 0, 1, 1, 0), mode="constant")
    return nchw(b, "MaxPool", padded, **attributes)


def _bottleneck(b: Tape, x: str, name: str, channels: int, width: int, stride: int) -> str:
    out = 4 * width
    y = conv_block(b, x, Conv(f"{name}.layer.0", channels, width, activation="relu"))
    middle = Conv(f"{name}.layer.1", width, width, 3, stride, activation="relu")
    y = conv_block(b, y, middle)
    y = conv_block(b, y, Conv(f"{name}.layer.2", width, out, gain=0.4))
    if channels != out or stride != 1:
        x = conv_block(b, x, Conv(f"{name}.shortcut", channels, out, stride=stride, gain=0.7))
    with b.scope(name):
        return b.op("Relu", b.op("Add", y, x))

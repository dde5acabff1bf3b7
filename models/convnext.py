"""ConvNeXt (tiny): depthwise 7x7, LayerNorm over channels, a pointwise MLP with a layer scale.

Input: pixel_values, float32 [batch, 3, image, image].
Output: logits, float32 [batch, classes].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models import layers, tokens
from models.builder import ALL, Size, Tape
from models.conv import Conv, bare_conv

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Liu et al. (2022), ConvNeXt-T."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    image: int
    classes: int
    epsilon: float = 1e-6


CONFIGS = {
    "tiny": Config((8, 16), (1, 2), image=32, classes=10),
    "full": Config((96, 192, 384, 768), (3, 3, 9, 3), image=224, classes=1000),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the classifier; see `models.catalog.build`."""
    c = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    x = b.input("pixel_values", np.float32, "batch", 3, c.image, c.image)
    x = tokens.patches(b, x, Conv("embeddings.patch_embeddings", 3, c.widths[0], 4, 4), 0)
    x = tokens.image_norm(b, x, "embeddings.layernorm", c.widths[0], c.epsilon)
    channels = c.widths[0]
    for stage, width in enumerate(c.widths):
        name = f"encoder.stages.{stage}"
        if stage:
            x = tokens.image_norm(b, x, f"{name}.downsampling_layer.0", channels, c.epsilon)
            down = Conv(f"{name}.downsampling_layer.1", channels, width, 2, 2)
            x = tokens.patches(b, x, down, 0)
        for i in range(c.depths[stage]):
            x = _block(b, x, f"{name}.layers.{i}", width, c)
        channels = width
    with b.scope("pooler"):
        pooled = b.reduce_mean(x, -2, -1, keepdims=False)
    pooled = layers.layer_norm(b, pooled, "layernorm", channels, c.epsilon)
    logits = layers.gemm(b, pooled, "classifier", channels, c.classes)
    b.output(logits, "logits", np.float32, "batch", c.classes)
    return b.model()


def _block(b: Tape, x: str, name: str, width: int, c: Config) -> str:
    y = bare_conv(b, x, Conv(f"{name}.dwconv", width, width, 7, groups=width))
    with b.scope(name):
        y = b.transpose(y, 0, 2, 3, 1)
    y = layers.layer_norm(b, y, f"{name}.layernorm", width, c.epsilon)
    y = layers.linear(b, y, f"{name}.pwconv1", width, 4 * width)
    with b.scope(f"{name}.act"):
        y = layers.gelu(b, y)
    y = layers.linear(b, y, f"{name}.pwconv2", 4 * width, width)
    with b.scope(name):
        y = tokens.scale(b, y, f"{name}.layer_scale_parameter", width)
        return b.op("Add", x, b.transpose(y, 0, 3, 1, 2))

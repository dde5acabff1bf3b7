"""What vision models write between images and tokens, in each spelling.

An image is [batch, channels, height, width], tokens are [batch, height * width, channels].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models import layers
from models.conv import Conv, bare_conv

if TYPE_CHECKING:
    from models.builder import Dim, Tape


def image_to_tokens(b: Tape, x: str, batch: int | Dim, channels: int, length: int) -> str:
    """Turn an image into tokens: `flatten(2).transpose(1, 2)` of torch."""
    if b.spelling.has_constant_nodes:
        kept = b.slice(b.op("Shape", x), b.ints(0), b.ints(2), 0)
        flat = b.op("Reshape", x, b.op("Concat", kept, b.ints(-1), axis=0))
    else:
        flat = b.reshape(x, batch, channels, length)
    return b.transpose(flat, 0, 2, 1)


def tokens_to_image(
    b: Tape, x: str, batch: int | Dim, channels: int, height: int, width: int
) -> str:
    """Turn tokens into an image: `transpose(1, 2).view(b, c, h, w)` of torch."""
    if b.spelling.has_constant_nodes:
        batch = b.dim(x, 0)
    return b.reshape(b.transpose(x, 0, 2, 1), batch, channels, height, width)


def image_norm(b: Tape, x: str, name: str, width: int, epsilon: float) -> str:
    """Normalize the channels of an image, as a LayerNorm between two transposes."""
    with b.scope(name):
        last = b.transpose(x, 0, 2, 3, 1)
    normed = layers.layer_norm(b, last, name, width, epsilon)
    with b.scope(name):
        return b.transpose(normed, 0, 3, 1, 2)


def patches(b: Tape, x: str, conv: Conv, pad: int) -> str:
    """Convolve with a bias and `pad` places on each side."""
    if pad == conv.kernel // 2:
        return bare_conv(b, x, conv)
    shape = conv.outputs, conv.inputs, conv.kernel, conv.kernel
    weight = b.weight(f"{conv.name}.weight", *shape, scale=float(np.prod(shape[1:])) ** -0.5)
    bias = b.weight(f"{conv.name}.bias", conv.outputs, scale=0.1)
    square = {"kernel_shape": [conv.kernel] * 2, "strides": [conv.stride] * 2}
    with b.scope(conv.name):
        return b.op("Conv", x, weight, bias, pads=[pad] * 4, dilations=[1, 1], group=1, **square)


def pixel_shuffle(b: Tape, x: str, factor: int = 2) -> str:
    """Turn channels into pixels, as torch's `pixel_shuffle`."""
    return b.op("DepthToSpace", x, blocksize=factor, mode="CRD")


def pixel_unshuffle(
    b: Tape, x: str, batch: int | Dim, channels: int, height: int, width: int, factor: int = 2
) -> str:
    """Turn pixels into channels, as torch's `pixel_unshuffle`; sizes are those of `x`."""
    if b.spelling.has_constant_nodes:
        batch = b.dim(x, 0)
    split = b.reshape(x, batch, channels, height // factor, factor, width // factor, factor)
    inner = b.transpose(split, 0, 1, 3, 5, 2, 4)
    wide = channels * factor * factor
    return b.reshape(inner, batch, wide, height // factor, width // factor)


def scale(b: Tape, x: str, name: str, *shape: int) -> str:
    """Multiply by a learned factor of each channel: LayerScale."""
    factor = b.weight(name, *shape, scale=0.1, mean=0.5)
    return b.op("Mul", factor, x) if b.spelling.has_constant_nodes else b.op("Mul", x, factor)

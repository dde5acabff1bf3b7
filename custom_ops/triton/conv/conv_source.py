"""The operands of a convolution as implicit GEMM: its own, or a space-to-depth of the image.

The first layer of a net reads images as they come, with few channels outermost: a product of
matrices gathers every number by itself. Where the filter has many, a launch before it lays them
out as pixels of all numbers that one step of the window is over (2 x 2 x 3 where it moves by 2),
with zeros to multiples of 16 bytes: neighbours of a row then are one piece of memory, and rows of
the window are the taps. 7 x 7 over 3 channels take 66 microseconds so for 32 images of 224 x 224
(304 without), 6.7 for one (12.9); 3 x 3 would take 33 (32) and 5.0 (3.2) (H100, 2026-11).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortkit.kernels.sizes import ONE, Extent, extent_of
from ortkit.kernels.triton.hand import Call, Passed, Scratch, Size, Tensor
from ortkit.refusal import Refused

from ...forms.conv_half import HalfConvolution
from .conv_tiles import power
from .imaged import Imaged

#: Bytes of a vector; pixels of a block of threads, numbers of the filter.
_VECTOR, _PIXELS, _NUMBERS = 16, 32, 256
#: Pixels of a block where numbers are bytes. With 32 a first layer of 128 images of
#: 224 x 224 takes 222 microseconds, with these 167 (H200, 2026-11).
_BYTE_PIXELS = 128
#: Pixels that a warp has.
_WARP_PIXELS = 32
#: Of one sum.
_SUM_BYTES = 4
#: Numbers of a pixel: more are no step of a window over an image.
_MOST_UNITS = 2048
#: Numbers of a filter of one channel up to which they are gathered where they lie.
_MOST_GATHERED = 64


@dataclass(frozen=True)
class Source:
    """Operands of a product, as `conv_kernel` takes them.

    Args:
        x: The image.
        weight: The filter.
        height: Rows of the image.
        width: Columns.
        channels: That one tap is over.
        pitch: Elements between neighbours of a row.
        kernel: Taps.
        strides: Of the window.
        dilations: Of the window.
        pads: Above and to the left.
        is_point: Whether each output pixel reads the one pixel in its place.
        is_planar: Whether the image has its channels outermost.
        calls: Launches before the product.
        scratch: Bytes of what they write.
        moved: int32 [M] of a launch before, by which sums of bytes are too large; None if there is
            none.
    """

    x: Passed
    weight: Passed
    height: Extent
    width: Extent
    channels: int
    pitch: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]
    is_point: bool
    is_planar: bool = False
    calls: tuple[Call, ...] = ()
    scratch: tuple[Extent, ...] = ()
    moved: Scratch | None = None

    @property
    def taps(self) -> int:
        """How many the window has, where the product goes through them one by one."""
        return 1 if self.is_planar else self.kernel[0] * self.kernel[1]

    @property
    def depth(self) -> int:
        """Numbers of a tap, or of all."""
        return self.channels * (self.kernel[0] * self.kernel[1] if self.is_planar else 1)


def source_of(conv: HalfConvolution) -> Source | Refused:
    """Return what the product of a convolution gathers."""
    window, (height, width, channels) = conv.window, conv.image
    if conv.planar and channels * window.kernel[0] * window.kernel[1] > _MOST_GATHERED:
        dtype = conv.output.dtype
        return spread(conv, conv.x, conv.weight, (dtype, dtype))
    return Source(
        Tensor(conv.x), Tensor(conv.weight), height, width, channels, channels,
        window.kernel, window.strides, window.dilations, window.pads[:2],
        window.is_point and not conv.planar, conv.planar,
    )  # fmt: skip


def spread(
    conv: Imaged,
    x: int,
    weight: int,
    dtypes: tuple[str, str],
    around: int | None = None,
    rounding: tuple[int | None, int] | None = None,
) -> Source | Refused:
    """Return the operands after space-to-depth, or why there are none.

    Args:
        conv: The convolution.
        x: The input that is the image.
        weight: The one that is the filter.
        dtypes: Of both, once the image is rounded.
        around: The input that is what lies outside of the image; None for 0.
        rounding: The inputs of the scale and the zero point by which float32 are rounded; no
            scale for 1. None if nothing is rounded.
    """
    window, (height, width, channels) = conv.window, conv.image
    size = np.dtype(dtypes[0]).itemsize
    known = [extent_of(side).static for side in conv.output.shape[1:3]]
    across, down = window.strides[1], window.strides[0]
    vector = _VECTOR // size
    units = -(-channels * down * across // vector) * vector
    if None in known:
        return Refused("a first layer of images of unknown sizes")
    if units > _MOST_UNITS:
        return Refused("a first layer that moves by too many pixels")
    reach = [
        (side - 1) * dilation + 1
        for side, dilation in zip(window.kernel, window.dilations, strict=True)
    ]
    taps = -(-reach[0] // down), -(-reach[1] // across)
    rows, columns = (
        side + tap - 1 for side, tap in zip(known, taps, strict=True) if side is not None
    )
    image, filters = Scratch(0, dtypes[0]), Scratch(1, dtypes[1])
    moved = None if around is None else Scratch(2, "int32")
    scale, middle = (None, None) if rounding is None else rounding
    pixels, warps = _PIXELS, 2
    if size == 1:
        pixels = max(_PIXELS, min(_BYTE_PIXELS, power(columns)))
        warps = max(warps, pixels // _WARP_PIXELS)
    lines = extent_of(conv.output.shape[0]) * Extent(rows)
    call = Call(
        "space_to_depth_kernel",
        (
            Tensor(x), Tensor(weight), None if around is None else Tensor(around), image, filters,
            moved, None if scale is None else Tensor(scale),
            None if middle is None else Tensor(middle), Size(height), Size(width),
            channels, conv.channels, *window.kernel, *window.strides, *window.dilations,
            *window.pads[:2], rows, columns, *taps, units, power(units), pixels, _NUMBERS,
        ),
        grid=((lines, 1), (Extent(columns), pixels), (ONE, 1)),
        warps=warps,
        stages=1,
    )  # fmt: skip
    scratch = (
        lines * Extent(size * columns * units),
        Extent(size * conv.channels * taps[0] * taps[1] * units),
        *(() if moved is None else (Extent(_SUM_BYTES * conv.channels),)),
    )
    return Source(
        image, filters, Extent(rows), Extent(columns), taps[1] * units, units,
        (taps[0], 1), (1, 1), (1, 1), (0, 0), taps[0] == 1, False, (call,), scratch,
        moved,
    )  # fmt: skip

"""Depthwise convolutions, which also make the means of the rows of pixels they write."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.cuda import Condition
from ortkit.kernels.layouts.conv_filters import channels_last
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of
from ortkit.kernels.triton.hand import Call, Size, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.conv_half import HalfConvolution, epilogue_text, optional, read_half
from ..alignment import for_any_alignment
from .conv_tiles import power

#: Elements that a thread reads at once, and the most pixels of a row that a block has. More
#: elements are fewer instructions, but threads are what an image of few channels lacks.
_VECTOR, _MOST_PIXELS = 4, 128
#: Elements of a block, about.
_ELEMENTS = 1024
#: From this many blocks on, of rows of pixels by channels, a thread has more pixels, which share
#: what it reads of the filter: 0.65 to 0.86 of the time with 32 images (H100, 2026-11).
_MANY, _MANY_PIXELS, _MANY_CHANNELS, _MANY_WARPS = 1056, 32, 64, 4
_MOST_TAPS = 128
#: Positions within an image have 32 bits.
_MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Block:
    """What one block of threads writes at a time: pixels of a row by channels."""

    pixels: int
    channels: int
    warps: int


def block_of(columns: int | None, channels: int, *, is_many: bool = False) -> Block:
    """Return the block for rows of `columns` pixels, None if that is not known.

    Args:
        columns: Pixels of a row.
        channels: Of the image.
        is_many: Whether there are many rows, of all images.
    """
    pixels = min(_MOST_PIXELS, power(columns or _MOST_PIXELS))
    if is_many:
        return Block(min(_MANY_PIXELS, pixels), min(_MANY_CHANNELS, power(channels)), _MANY_WARPS)
    width = min(max(16, min(64, _ELEMENTS // pixels)), power(channels))
    # Each thread has one vector of channels.
    return Block(pixels, width, max(1, min(16, pixels * width // (_VECTOR * 32))))


def bound_of(image: Extent) -> tuple[Condition, ...] | Refused:
    """Return what has to hold for positions in an image, or why it does not.

    Args:
        image: Elements of one image.
    """
    if image.static is None:
        return (Condition(image, at_most=_MOST_ELEMENTS),)
    return Refused("an image of 2^31 elements") if image.static > _MOST_ELEMENTS else ()


@dataclass(frozen=True)
class Depthwise:
    """A convolution of each channel by itself.

    Args:
        conv: What is computed.
        bound: When positions have room.
        means: Whether the means of rows are a result.
    """

    conv: HalfConvolution
    bound: tuple[Condition, ...]
    means: bool

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for few rows of pixels and one for many, if that is not known."""
        batch, rows = (extent_of(size) for size in self.conv.output.shape[:2])
        lines, most = batch * rows, -(-_MANY // -(-self.conv.channels // _MANY_CHANNELS)) - 1
        if lines.static is not None:
            return self._variants(is_many=lines.static > most)
        few, *_ = self._variants(is_many=False, conditions=(Condition(lines, at_most=most),))
        return (few, *self._variants(is_many=True))

    def _variants(
        self, *, is_many: bool, conditions: tuple[Condition, ...] = ()
    ) -> tuple[VariantSource, ...]:
        """Return a block for each row of pixels and some channels, and one for any alignment."""
        conv, window = self.conv, self.conv.window
        height, width, channels = conv.image
        rows, columns = (extent_of(size) for size in conv.output.shape[1:3])
        block = block_of(columns.static, channels, is_many=is_many)
        first, extras = len(conv.signature.inputs), conv.epilogue.extras
        call = Call(
            "depthwise_kernel",
            (
                Tensor(conv.x), Tensor(conv.weight), optional(conv.bias),
                optional(extras[0] if extras else None), Tensor(first),
                Tensor(first + 1) if self.means else None,
                Size(height), Size(width), channels, Size(rows), Size(columns),
                *window.kernel, *window.strides, *window.dilations, *window.pads[:2],
                block.pixels, block.channels,
            ),
            grid=(
                (extent_of(conv.output.shape[0]) * rows, 1),
                (Extent(channels), block.channels),
                (ONE, 1),
            ),
            warps=block.warps,
            stages=1,
        )  # fmt: skip
        text = kernel_text("depthwise_kernel") + epilogue_text(
            "epilogue", conv.epilogue, is_rough=True
        )
        conditions = (*conditions, *self.bound)
        return for_any_alignment(conv.signature, (call,), text, conditions=conditions)


def match(signature: RegionSignature) -> Depthwise | Refused | None:
    """Return the region as a depthwise convolution; None if it is something else."""
    found = read_half(signature)
    if found is None or isinstance(found, Refused):
        return found
    if found.groups == 1:
        return None
    if found.planar or found.window.kernel[0] * found.window.kernel[1] > _MOST_TAPS:
        return Refused("a depthwise convolution of NCHW or with too large a window")
    height, width, channels = found.image
    bound = bound_of(height * width * Extent(channels))
    if isinstance(bound, Refused):
        return bound
    if len(signature.outputs) == 1:
        return Depthwise(found, bound, means=False)
    return (
        Depthwise(found, bound, means=True)
        if _is_means(found)
        else Refused("a second result that is not the means of rows")
    )


ANCHOR = ConvAnchor(
    "depthwise_conv",
    lambda sizes: 1 < sizes.groups == sizes.given[1] == sizes.filters[0], channels_last,
)  # fmt: skip


def _is_means(conv: HalfConvolution) -> bool:
    """Say whether the second result is the mean of each row of the first one, [N, OH, C]."""
    body, signature = conv.body, conv.signature
    if len(signature.outputs) != 2:
        return False
    batch, rows, _, channels = conv.output.shape
    transposed = body.transposed(body.function.output[1], (0, 2, 1))
    mean = None if transposed is None else body.producer(transposed, "ReduceMean")
    if mean is None or mean.input[0] != conv.result or body.axes(mean) != (3,):
        return False
    return signature.outputs[1].shape == (batch, rows, channels)

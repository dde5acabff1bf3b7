"""A 1x1 convolution and the depthwise one of its result in one launch, for few pixels.

A launch takes one to two microseconds however little it computes. Blocks of threads compute the
rows at the edges of their bands twice, which costs less where images are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from ortkit.kernels.layouts.conv_filters import as_image, channels_last
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, known
from ortkit.kernels.triton.hand import Call, Scratch, Tensor, kernel_text
from ortkit.kernels.triton.source import VariantSource
from ortkit.operators.window import Window
from ortkit.refusal import Refused, needed, refusals

from ...forms.body import TO_NCHW, TO_NHWC, Body, integer
from ...forms.conv import window_of
from ...forms.conv_half import epilogue_text, optional, unfit
from ...forms.epilogue import Epilogue, read_epilogue
from ..alignment import for_any_alignment
from .conv_tiles import power

#: Multiprocessors of a GPU, about, and blocks for each of them at most; what these may take beyond
#: a launch, in nanoseconds; pixels of a block.
_PROCESSORS, _MOST_BLOCKS, _MOST_NS, _BLOCK_PIXELS = 132, 2, 2700, 512
_MOST_TAPS, _MOST_DEPTH = 49, 256
#: Of the depth: the largest and the smallest step, and how many are read ahead; bytes of shared
#: memory for them, which all GPUs have.
_STEP, _LEAST_STEP, _STAGES, _SHARED = 128, 16, 3, 80 * 1024
#: Elements of the result, and of what is expanded, for each warp; warps at least and at most. Taps
#: wait for each other: 4 warps with 16 elements a thread took 3 times as long (H200, 2026-11).
_ELEMENTS, _EXPANDED, _WARPS, _MOST_WARPS = 128, 512, 4, 16
#: Of a multiprocessor in a nanosecond: elements that are read, taps of each warp, up to this many
#: warps. What is expanded takes as long as this many taps.
_READ, _TAPS, _BUSY, _EXPANDING = 30, 2.2, 16, 4


@dataclass(frozen=True)
class Band:
    """Of one block: rows of the result by channels, and what it expands for them."""

    rows: int
    channels: int
    read: int
    """Rows of the image."""
    pixels: int
    """At least those of these rows, a power of two."""
    elements: int
    """Of the result, with columns up to a power of two."""

    @property
    def warps(self) -> int:
        """Of 32 threads; products are those of four at a time."""
        fair = max(self.elements // _ELEMENTS, self.pixels * self.channels // _EXPANDED)
        return max(_WARPS, min(_MOST_WARPS, fair))

    def steps(self, depth: int) -> tuple[int, int]:
        """Return how much of the depth is read at a time, and how many times ahead."""
        step = min(_STEP, max(16, power(depth)))
        while True:
            stages = max(1, min(_STAGES, ceil(depth / step)))
            if 2 * (self.pixels + self.channels) * step * stages <= _SHARED or step == _LEAST_STEP:
                return step, stages
            step //= 2


@dataclass(frozen=True)
class Sizes:
    """What a choice of bands depends on.

    Args:
        image: Images, rows and columns of what is expanded.
        made: Rows and columns of the result.
        depth: Channels before.
        channels: Channels after.
        window: Of the depthwise filter.
    """

    image: tuple[int, int, int]
    made: tuple[int, int]
    depth: int
    channels: int
    window: Window


def choose_band(sizes: Sizes) -> Band | None:
    """Return the band of a block, None where both convolutions are better off alone."""
    (images, height, width), window = sizes.image, sizes.window
    columns = power(sizes.made[1])
    best, least = None, float(_MOST_NS)
    for channels in (16, 32):
        for rows in (1, 2, 4, 8, 16):
            reach = (rows - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0]
            read = min(reach + 1, height)
            pixels = max(64, power(read * width))
            band = Band(rows, channels, read, pixels, rows * columns * channels)
            if max(pixels, rows * columns) > _BLOCK_PIXELS or rows > power(sizes.made[0]):
                continue
            blocks = images * ceil(sizes.made[0] / rows) * ceil(sizes.channels / channels)
            each = ceil(blocks / _PROCESSORS)
            took = _work(band, sizes, each)
            if took < least and each <= _MOST_BLOCKS:
                best, least = band, took
    return best


def _work(band: Band, sizes: Sizes, blocks: int) -> float:
    """Return about what the blocks of a multiprocessor take beyond a launch, in nanoseconds."""
    read = (band.pixels + band.channels) * sizes.depth / _READ
    taps = band.elements * prod(sizes.window.kernel) + _EXPANDING * band.pixels * band.channels
    return blocks * (read + taps / (_TAPS * min(blocks * band.warps, _BUSY)))


@dataclass(frozen=True)
class ExpandDepthwise:
    """Both convolutions; numbers are the region's inputs, None where there is none.

    Args:
        x: [N, H, W, C].
        weights: Of both: [M, 1, 1, C] and [KH, KW, 1, M].
        biases: Of both, [M].
        epilogues: Of both.
        sizes: What bands depend on.
        band: Of a block.
    """

    signature: RegionSignature
    x: int
    weights: tuple[int, int]
    biases: tuple[int | None, int | None]
    epilogues: tuple[Epilogue, Epilogue]
    sizes: Sizes
    band: Band

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for aligned tensors, and one for any."""
        sizes, band, window = self.sizes, self.band, self.sizes.window
        first = len(self.signature.inputs)
        has_means = len(self.signature.outputs) > 1
        bands, pieces = ceil(sizes.made[0] / band.rows), ceil(sizes.channels / band.channels)
        blocks = sizes.image[0] * bands * pieces
        step, stages = band.steps(sizes.depth)
        call = Call(
            "expand_depthwise_kernel",
            (
                Tensor(self.x), Tensor(self.weights[0]), optional(self.biases[0]),
                Tensor(self.weights[1]), optional(self.biases[1]), Tensor(first),
                Tensor(first + 1) if has_means else None,
                Scratch(0, self.signature.outputs[0].dtype),
                *sizes.image[1:], sizes.depth, *sizes.made, sizes.channels,
                *window.kernel, *window.strides, *window.dilations, *window.pads[:2],
                band.read, band.pixels, band.rows, power(sizes.made[1]), band.channels,
                step,
            ),
            grid=((Extent(blocks), 1), (ONE, 1), (ONE, 1)),
            warps=band.warps,
            stages=stages,
        )  # fmt: skip
        text = kernel_text("expand_depthwise_kernel")
        for name, follows in zip(("inner", "outer"), self.epilogues, strict=True):
            text += epilogue_text(name, follows, is_rough=True)
        between = Extent(2 * blocks * band.read * sizes.image[2] * band.channels)
        return for_any_alignment(self.signature, (call,), text, (between,))


def pays(image: Sequence[object], made: Sequence[object], depth: object, window: Window) -> bool:
    """Say whether both convolutions are worth one kernel.

    Args:
        image: Images, channels, rows and columns of the first one's result.
        made: The same of the second one's.
        depth: Channels of what the first one reads.
        window: Of the depthwise filter.
    """
    numbers = [size for size in (*image, *made, depth) if isinstance(size, int) and size > 0]
    if not len(numbers) == len(image) + len(made) + 1 == 9:
        return False
    images, channels, height, width, _, _, rows, columns, before = numbers
    of = Sizes((images, height, width), (rows, columns), before, channels, window)
    return _fits(of) and choose_band(of) is not None


def _fits(sizes: Sizes) -> bool:
    return prod(sizes.window.kernel) <= _MOST_TAPS and sizes.depth <= _MOST_DEPTH


@refusals
def match(signature: RegionSignature) -> ExpandDepthwise | Refused | None:
    """Return the region as the two convolutions; None if it is something else."""
    body, inputs = Body(signature), signature.inputs
    convs = sorted(body.nodes("Conv"), key=lambda conv: integer(conv, "group", 1))
    if len(convs) != 2 or [integer(conv, "group", 1) > 1 for conv in convs] != [False, True]:
        return None
    if refused := unfit(signature):
        return refused
    first, second = convs
    x = body.input_through(first.input[0], TO_NCHW)
    result = body.transposed(body.function.output[0], TO_NHWC)
    windows = needed(window_of(first)), needed(window_of(second))
    if x is None or result is None or len(inputs[x].shape) != 4 or not windows[0].is_point:
        return Refused("two convolutions the first of which is not 1x1 of NHWC")
    dtype, shape = signature.outputs[0].dtype, inputs[x].shape
    epilogues = (
        needed(read_epilogue(body, first.output[0], second.input[0], dtype)),
        needed(read_epilogue(body, second.output[0], result, dtype)),
    )
    if epilogues[0].extras or epilogues[1].extras:
        return Refused("two convolutions with further operands")
    made = signature.outputs[0].shape
    if not all(isinstance(size, int) and size > 0 for size in (*shape, *made)):
        return Refused("two convolutions over images of a size that is not known")
    images, height, width, depth = known(shape)
    rows, columns, channels = known(made[1:])
    if integer(second, "group", 1) != channels:
        return Refused("a filter that is not of each channel by itself")
    weights = (
        body.packed(str(first.input[1]), as_image((channels, depth, 1, 1))),
        body.packed(str(second.input[1]), channels_last((channels, 1, *windows[1].kernel))),
    )
    biases = [body.inputs.get(conv.input[2]) if len(conv.input) > 2 else None for conv in convs]
    if weights[0] is None or weights[1] is None:
        return Refused("two convolutions whose weights are computed")
    for conv, bias in zip(convs, biases, strict=True):
        if len(conv.input) > 2 and (bias is None or inputs[bias].shape != (channels,)):
            return Refused("a convolution whose bias is computed")
    if len(signature.outputs) > 1 and not _has_means(body, result):
        return Refused("a second result that is not the means of rows")
    sizes = Sizes((images, height, width), (rows, columns), depth, channels, windows[1])
    band = choose_band(sizes) if _fits(sizes) else None
    if band is None:
        return Refused("two convolutions of too many pixels for one kernel")
    return ExpandDepthwise(
        signature, x, (weights[0], weights[1]), (biases[0], biases[1]), epilogues, sizes, band
    )


def _has_means(body: Body, result: str) -> bool:
    """Say whether the second of two results is the mean of each row of the first."""
    outputs = body.signature.outputs
    transposed = body.transposed(body.function.output[1], (0, 2, 1))
    mean = None if transposed is None else body.producer(transposed, "ReduceMean")
    if len(outputs) != 2 or mean is None or mean.input[0] != result or body.axes(mean) != (3,):
        return False
    batch, rows, _, channels = outputs[0].shape
    return outputs[1].shape == (batch, rows, channels)

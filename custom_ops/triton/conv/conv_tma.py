"""Convolutions of many pixels on Hopper: which boxes of pixels, and the launch."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import Call, Map, Passed, Scratch, Size, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from ...forms.conv_half import HalfConvolution, epilogue_text, optional, sum_call
from .conv_tiles import Tile
from .imaged import Imaged

_ARCHITECTURES = (90,)
#: Elements whose bytes are what strides of maps are multiples of; the most of a side of a box.
_VECTOR, _MOST_SIDE = 8, 256
#: What follows in more lines, such as an error function, has no registers left beside the sums of
#: a tile, of which each thread of this many warps has no more than 64.
_LONG, _LONG_WARPS = 12, 8


@dataclass(frozen=True)
class Grid:
    """The pixels of a result as boxes see them, and what a box of the image is.

    Args:
        pixels: Images, rows and columns; rows of one image are its pixels where a window has one
            tap, and all images are one where nothing tells them apart.
        source: The image's dims, see `conv_box_kernel`, and the strides of all but the last.
        strides: Of the window, as the kernel has to know them.
    """

    pixels: tuple[Extent, Extent, Extent]
    source: tuple[tuple[Extent, ...], tuple[Extent, ...]]
    strides: tuple[int, int]


def grid_of(conv: Imaged, vector: int = _VECTOR) -> Grid | None:
    """Return the grid of a convolution; None if copies of boxes do not reach its operands.

    Args:
        conv: The convolution.
        vector: Elements of 16 bytes.
    """
    window, (height, width, channels) = conv.window, conv.image
    if conv.planar or channels % vector or conv.channels % vector:
        return None
    batch, *known = (extent_of(size) for size in conv.output.shape[:3])
    sizes = [extent.static for extent in (height, width, *known)]
    c, (down, across) = Extent(channels), window.strides
    if window.is_point:
        images, columns = (ONE, conv.pixels) if conv.gate is None else (batch, product(known))
        strides = (columns * c, c, c, c)
        return Grid((images, ONE, columns), ((images, ONE, ONE, columns, c), strides), (1, 1))
    if None in sizes or conv.gate is not None:
        return None
    row, pixels = width * c, (batch, known[0], known[1])
    if window.kernel == (1, 1) and not any(window.pads):
        dims = (batch, known[0], ONE, known[1], c)
        return Grid(
            pixels, (dims, (height * row, Extent(down) * row, row, Extent(across) * c)), (1, 1)
        )
    high, wide = height.divided_by(Extent(down)), width.divided_by(Extent(across))
    if high is None or wide is None:
        return None
    dims = (batch, high, Extent(down), wide, Extent(across) * c)
    strides = (height * row, Extent(down) * row, row, Extent(across) * c)
    return Grid(pixels, (dims, strides), (down, across))


def box_of(images: int, rows: int, columns: int, pixels: int) -> tuple[int, int, int]:
    """Return the box of `pixels`, a power of two, that covers a result with fewest of them."""
    sides = [1 << bit for bit in range(pixels.bit_length())]
    boxes = [
        (pixels // (high * wide), high, wide)
        for wide in sides
        for high in sides
        if high * wide <= pixels and max(pixels // (high * wide), high, wide) <= _MOST_SIDE
    ]

    def count(box: tuple[int, int, int]) -> tuple[int, int, int]:
        across = -(-columns // box[2])
        return -(-images // box[0]) * -(-rows // box[1]) * across, -box[2], -box[1]

    return min(boxes, key=count)


def box_variant(
    conv: HalfConvolution, tile: Tile, nominal: int, most: int
) -> VariantSource | None:
    """Return the kernel for up to `most` pixels, about `nominal`; None where there is none."""
    grid = grid_of(conv)
    if grid is None:
        return None
    images, rows, columns = grid.pixels
    if grid.strides != (1, 1) and conv.image[2] % tile.depth:
        return None  # a box would reach into the next column
    per_image = (rows * columns).static
    count = images.static or max(1, nominal // (per_image or nominal))
    box = box_of(
        1 if conv.gate is not None else count, rows.static or 1, columns.static or nominal,
        tile.pixels,
    )  # fmt: skip
    taps = conv.window.kernel[0] * conv.window.kernel[1]
    c, out = Extent(conv.image[2]), Extent(conv.channels)
    extra = next(iter(conv.epilogue.extras), None)
    parts = Scratch(0, "float32") if tile.split > 1 else None
    epilogue = epilogue_text("epilogue", conv.epilogue, is_rough=True)
    is_long = parts is None and epilogue.count("\n") > _LONG

    def result(tensor: int) -> Map:
        strides = (rows * columns * out, columns * out, out)
        return Map(tensor, (*grid.pixels, out), strides, (*box, tile.channels))

    x_box = (box[0], box[1], 1, box[2], tile.depth)
    weight = Map(
        conv.weight, (out, Extent(taps), c), (Extent(taps) * c, c), (tile.channels, 1, tile.depth)
    )
    arguments: tuple[Passed, ...] = (
        Map(conv.x, *grid.source, x_box), weight,
        optional(conv.bias), optional(conv.gate), None if extra is None else result(extra),
        result(len(conv.signature.inputs)), parts, *map(Size, grid.pixels),
        conv.image[2], conv.channels, *conv.window.kernel, *grid.strides,
        *conv.window.dilations, *conv.window.pads[:2], *box, tile.channels, tile.depth, tile.split,
    )  # fmt: skip
    # Places of an image: rows are known unless there is one.
    image_grid = (columns, box[2])
    if rows.static != 1:
        assert columns.static is not None
        assert rows.static is not None
        image_grid = (Extent(-(-rows.static // box[1]) * -(-columns.static // box[2])), 1)
    across = (Extent(-(-conv.channels // tile.channels) * tile.split), 1)
    calls = [
        Call(
            "conv_box_kernel", arguments, (across, image_grid, (images, box[0])),
            warps=_LONG_WARPS if is_long else tile.warps, stages=tile.stages,
        )
    ]  # fmt: skip
    scratch: tuple[Extent, ...] = ()
    text = kernel_text("conv_tma_kernel") + epilogue
    if parts is not None:
        added, size = sum_call(conv, parts, tile.split)
        calls.append(added)
        text, scratch = kernel_text("conv_kernel") + text, (size,)
    conditions = (
        Condition(conv.pixels, at_most=most),
        Condition(image_grid[0], at_most=MAX_GRID[1] * image_grid[1]),
        Condition(images, at_most=MAX_GRID[2] * box[0]),
    )
    return hand_variant(
        conv.signature, calls, text, conditions, scratch=scratch, architectures=_ARCHITECTURES,
        is_optional=True,
    )  # fmt: skip

"""Convolutions of any window with one group: products of matrices, gathered as they are read."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.backend import Refused
from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import Call, Passed, Size, Tensor, hand_variant, kernel_text
from ortkit.kernels.triton.source import VariantSource

from .conv_form import Convolution, epilogue_text, read_convolution
from .conv_tiles import UNALIGNED, Tile, choose_tile

#: Where the number of pixels is not known: up to these many one kernel each, and one for more.
_STEPS = (256, 4096, 50000)
_NOMINAL = (128, 2048, 16384, 200_000)
#: Positions of pixels have 32 bits.
_MOST = 2**31 - 1 - 256


@dataclass(frozen=True)
class Conv:
    """A convolution with one group."""

    conv: Convolution

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of numbers of pixels, and one for unaligned tensors."""
        conv, window = self.conv, self.conv.window
        channels = conv.image[2]
        depth = channels * window.kernel[0] * window.kernel[1] if conv.is_planar else channels
        pixels = conv.pixels.static
        ranges = [(pixels or 0, _MOST)]
        if pixels is None:
            ranges = [*zip(_NOMINAL, (*_STEPS, _MOST), strict=True)]
        shape = (conv.channels, depth, conv.gate is not None)
        tiles = [(choose_tile(nominal, *shape), most) for nominal, most in ranges]
        found = [self._variant(tile, most, is_aligned=True) for tile, most in tiles]
        return (*found, self._variant(UNALIGNED, _MOST, is_aligned=False))

    def _variant(self, tile: Tile, most: int, *, is_aligned: bool) -> VariantSource:
        """Return the kernel of a tile, for up to so many pixels."""
        conv, window = self.conv, self.conv.window
        rows, images = self._rows(tile)
        # What the grid has room for.
        conditions = (
            Condition(conv.pixels, at_most=most),
            Condition(rows[0], at_most=MAX_GRID[1] * tile.pixels),
            Condition(images[0], at_most=MAX_GRID[2]),
        )
        height, width, channels = conv.image
        tensors = len(conv.signature.inputs)
        extras = conv.epilogue.extras
        arguments: tuple[Passed, ...] = (
            Tensor(conv.x), Tensor(conv.weight), _optional(conv.bias), _optional(conv.gate),
            _optional(extras[0] if extras else None), Tensor(tensors), Size(conv.pixels),
            Size(height), Size(width), channels,
            *(Size(extent_of(size)) for size in conv.output.shape[1:3]), conv.channels,
            *window.kernel, *window.strides, *window.dilations, *window.pads[:2],
            window.is_point and not conv.is_planar, conv.is_planar,
            tile.pixels, tile.channels, tile.depth,
        )  # fmt: skip
        call = Call(
            "conv_kernel",
            arguments,
            grid=((Extent(conv.channels), tile.channels), rows, images),
            warps=tile.warps,
            stages=tile.stages,
        )
        text = kernel_text("conv_kernel") + epilogue_text("epilogue", conv.epilogue)
        return hand_variant(conv.signature, (call,), text, conditions, is_aligned=is_aligned)

    def _rows(self, tile: Tile) -> tuple[tuple[Extent, int], tuple[Extent, int]]:
        """Return the grid of pixels: of all images, or with a gate of each."""
        if self.conv.gate is None:
            return (self.conv.pixels, tile.pixels), (ONE, 1)
        batch, *image = (extent_of(size) for size in self.conv.output.shape[:3])
        return (product(image), tile.pixels), (batch, 1)


def match(signature: RegionSignature) -> Conv | Refused | None:
    """Return the region as a convolution with one group; None if it is something else."""
    found = read_convolution(signature)
    if found is None or isinstance(found, Refused):
        return found
    if found.groups != 1:
        return None
    if len(signature.outputs) != 1:
        return Refused("a convolution with more than one result")
    if (found.pixels.static or 0) > MAX_GRID[1] * UNALIGNED.pixels:
        return Refused("a convolution of too many pixels")
    return Conv(found)


def _optional(index: int | None) -> Tensor | None:
    return None if index is None else Tensor(index)

"""Convolutions of any window with one group: products of matrices, gathered as they are read."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.cuda import MAX_GRID, Condition
from ortkit.kernels.layouts.conv_filters import as_image
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.kernels.triton.hand import (
    Call,
    Passed,
    Scratch,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.conv_half import HalfConvolution, epilogue_text, optional, read_half, sum_call
from ..alignment import UNALIGNED_ARCHITECTURES
from .conv_source import Source, source_of
from .conv_tiles import UNALIGNED, Tile, choose_box, choose_tile, is_streamed
from .conv_tma import box_variant

#: Where the number of pixels is not known: up to these many one kernel each, and one for more.
_STEPS = (256, 4096, 50000)
_NOMINAL = (128, 2048, 16384, 200_000)
#: Of an element.
_BYTES = 2
#: Positions of pixels have 32 bits.
_MOST = 2**31 - 1 - 256


@dataclass(frozen=True)
class Conv:
    """A convolution with one group, and what its product gathers."""

    conv: HalfConvolution
    source: Source

    def variants(self) -> tuple[VariantSource, ...]:
        """Return a kernel for each range of numbers of pixels, and one for unaligned tensors."""
        conv, pixels = self.conv, self.conv.pixels.static
        ranges = [(pixels or 0, _MOST)]
        if pixels is None:
            ranges = [*zip(_NOMINAL, (*_STEPS, _MOST), strict=True)]
        shape = (conv.channels, self.source.depth, self.source.taps, conv.gate is not None)
        found = []
        for nominal, most in ranges:
            box = choose_box(nominal, *shape)
            if box is not None and (made := box_variant(conv, box, nominal, most)) is not None:
                found.append(made)
            found.append(self._variant(choose_tile(nominal, *shape), most, is_aligned=True))
        return (*found, self._variant(UNALIGNED, _MOST, is_aligned=False))

    def _variant(self, tile: Tile, most: int, *, is_aligned: bool) -> VariantSource:
        """Return the kernel of a tile, for up to this many pixels."""
        conv, source = self.conv, self.source
        rows, images = self._rows(tile)
        # What the grid has room for.
        conditions = (
            Condition(conv.pixels, at_most=most),
            Condition(rows[0], at_most=MAX_GRID[1] * tile.pixels),
            Condition(images[0], at_most=MAX_GRID[2]),
        )
        tensors, parts = len(conv.signature.inputs), Scratch(len(source.scratch), "float32")
        extra = optional(next(iter(conv.epilogue.extras), None))
        weight_bytes = _BYTES * conv.channels * source.depth * source.taps
        policy = "evict_first" if is_streamed(conv.pixels.static or most, weight_bytes) else ""
        arguments: tuple[Passed, ...] = (
            source.x, source.weight, optional(conv.bias), optional(conv.gate),
            extra, Tensor(tensors), parts if tile.split > 1 else None, Size(conv.pixels),
            Size(source.height), Size(source.width), source.channels, source.pitch,
            *(Size(extent_of(size)) for size in conv.output.shape[1:3]), conv.channels,
            *source.kernel, *source.strides, *source.dilations, *source.pads, source.is_point,
            source.is_planar, tile.pixels, tile.channels, tile.depth, tile.split, policy,
        )  # fmt: skip
        calls = [
            *source.calls,
            Call(
                "conv_kernel",
                arguments,
                grid=(
                    (Extent(conv.channels), tile.channels),
                    rows,
                    images if tile.split == 1 else (Extent(tile.split), 1),
                ),
                warps=tile.warps,
                stages=tile.stages,
                has_eviction_policy=bool(policy),
            ),
        ]
        scratch = source.scratch
        if tile.split > 1:
            added, size = sum_call(conv, parts, tile.split)
            calls.append(added)
            scratch += (size,)
        text = kernel_text("conv_kernel") + epilogue_text("epilogue", conv.epilogue, is_rough=True)
        if source.calls:
            text = kernel_text("space_to_depth_kernel") + text
        return hand_variant(
            conv.signature, calls, text, conditions, is_aligned=is_aligned,
            architectures=None if is_aligned else UNALIGNED_ARCHITECTURES,
            scratch=scratch,
        )  # fmt: skip

    def _rows(self, tile: Tile) -> tuple[tuple[Extent, int], tuple[Extent, int]]:
        """Return the grid of pixels: of all images, or with a gate of each."""
        if self.conv.gate is None:
            return (self.conv.pixels, tile.pixels), (ONE, 1)
        batch, *image = (extent_of(size) for size in self.conv.output.shape[:3])
        return (product(image), tile.pixels), (batch, 1)


# Up to this many channels a convolution reads them outermost, as images come.
_MOST_PLANAR_CHANNELS = 4
PLANAR = ConvAnchor(
    "conv", lambda sizes: sizes.groups == 1 and sizes.given[1] <= _MOST_PLANAR_CHANNELS, as_image,
    is_planar=True,
)  # fmt: skip
ANCHOR = ConvAnchor("conv", lambda sizes: sizes.groups == 1, as_image)


def match(signature: RegionSignature) -> Conv | Refused | None:
    """Return the region as a convolution with one group; None if it is something else."""
    found = read_half(signature)
    if found is None or isinstance(found, Refused):
        return found
    if found.groups != 1:
        return None
    if len(signature.outputs) != 1:
        return Refused("a convolution with more than one result")
    if (found.pixels.static or 0) > MAX_GRID[1] * UNALIGNED.pixels:
        return Refused("a convolution of too many pixels")
    source = source_of(found)
    return source if isinstance(source, Refused) else Conv(found, source)

"""DepthToSpace and SpaceToDepth of NHWC images: which pixels of a block become which channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class PixelBlocks:
    """Blocks of `size` x `size` pixels that move to channels or back, in images of known size.

    Args:
        size: Pixels of a block in each direction.
        height: Rows of blocks.
        width: Blocks in a row.
        channels: Channels of a pixel of a block.
        to_pixels: Whether it is a DepthToSpace.
        is_inner: Whether the pixels of a block are the inner part of its channels (CRD); else
            they are the outer part.
    """

    size: int
    height: int
    width: int
    channels: int
    to_pixels: bool
    is_inner: bool = False

    @property
    def outer_order(self) -> np.ndarray:
        """Where channels with the pixels outermost are among these, as indices [size^2 * C]."""
        count = self.size * self.size
        return np.arange(count * self.channels).reshape(self.channels, count).T.reshape(-1)

    def emit(self, site: Site, image: ir.Value, name: str) -> ir.Value:
        """Move the blocks of an NHWC image; whole rows of pixels of a block are copied."""
        pair = self.size * self.channels
        in_pixels = (0, self.height, self.size, self.width, pair)
        in_channels = (0, self.height, self.width, self.size, pair)
        if self.to_pixels:
            if self.is_inner:
                sizes = self.height, self.width, self.channels, self.size * self.size
                image = with_channels_transposed(site, image, sizes)
            shape = (0, self.height * self.size, self.width * self.size, self.channels)
        else:
            shape = (0, self.height, self.width, self.size * pair)
        given = in_channels if self.to_pixels else in_pixels
        image = site.op("Reshape", [image, site.constant(given)])
        image = site.op("Transpose", [image], {"perm": (0, 1, 3, 2, 4)})
        return site.op("Reshape", [image, site.constant(shape)], name=name)


def with_channels_transposed(
    site: Site, image: ir.Value, sizes: tuple[int, int, int, int], name: str = ""
) -> ir.Value:
    """Return an NHWC image whose channels [a, b] are [b, a]; `sizes` are height, width, a, b."""
    height, width, outer, inner = sizes
    image = site.op("Reshape", [image, site.constant((0, *sizes))])
    image = site.op("Transpose", [image], {"perm": (0, 1, 2, 4, 3)})
    shape = site.constant((0, height, width, outer * inner))
    return site.op("Reshape", [image, shape], name=name)


def blocks_of(site: Site) -> PixelBlocks | None:
    """Return what a DepthToSpace or SpaceToDepth moves; None where a size is not known."""
    known = known_sizes(site, site.input(0))
    size = site.int("blocksize", 0)
    if known is None or size < 1:
        return None
    channels, height, width = known
    if site.node.op_type == "DepthToSpace":
        is_inner = site.string("mode", "DCR") == "CRD"
        return PixelBlocks(size, height, width, channels // size**2, True, is_inner)
    return PixelBlocks(size, height // size, width // size, channels, False)


def known_sizes(site: Site, image: ir.Value | None) -> tuple[int, int, int] | None:
    """Return channels, height and width of an NCHW image; None where one is not known, or 0."""
    shape = site.shape(image)
    sizes = [size for size in shape or () if isinstance(size, int) and size > 0]
    if shape is None or len(shape) != 4 or len(sizes) < 3 or tuple(sizes[-3:]) != shape[1:]:
        return None
    channels, height, width = sizes[-3:]
    return channels, height, width


def channel_transpose_of(indices: Sequence[int]) -> tuple[int, int] | None:
    """Return the sizes [a, b] of channels that a Gather with `indices` transposes to [b, a].

    None for other orders, and for the one that changes nothing.
    """
    count = len(indices)
    inner = indices[1] if count > 2 else 0
    if inner < 2 or count % inner or inner == count:
        return None
    expected = np.arange(count).reshape(count // inner, inner).T.reshape(-1)
    return (count // inner, inner) if np.array_equal(indices, expected) else None

"""Matrices of int8 as the kernels of integer products read them: panels of columns.

Four neighbours along K of a column lie together, which one instruction multiplies and adds up
(VNNI), and of which tiles are made (AMX). Panels lie one after another.

Filters of convolutions over NHWC images are such matrices. K goes line by line through a filter,
along each line through its pixels and their channels; each line begins a group of its own.
"""

from __future__ import annotations

from dataclasses import replace

from ortkit.kernels.layouts.conv_filters import Sizes
from ortkit.kernels.prepack import Prepack

#: Elements along K that lie together, and columns of a panel: two vectors of 16.
GROUP, WIDTH = 4, 32
#: Largest amount of a weight of 7 bits: 255 times two of them fit 16 bits, in which processors
#: without VNNI add up such products.
NARROW = 64


def layout(depth: int, columns: int) -> Prepack:
    """Return the panels of an int8 matrix [depth, columns]; what fills the last ones up is 0."""
    groups, panels = -(-depth // GROUP), -(-columns // WIDTH)
    whole = groups * GROUP, panels * WIDTH
    return Prepack((panels, groups, WIDTH, GROUP), (1, 3, 0, 2), whole, (depth, columns))


def lines_of(
    kernel: tuple[int, int], dilations: tuple[int, int], channels: int
) -> tuple[int, int]:
    """Return the runs of bytes of an image that a filter reads, and the length of each.

    Args:
        kernel: Lines of the filter, and pixels of a line.
        dilations: How far these are apart, in lines and in pixels.
        channels: Of a pixel.
    """
    height, width = kernel
    if dilations[1] == 1:
        return height, width * channels
    return height * width, channels


def joined_groups(columns: int, groups: int) -> int:
    """Return how many groups of channels are read as one, with zeros between them.

    As many as fill whole panels, or all.

    Args:
        columns: Filters of all groups.
        groups: Of channels.
    """
    each = columns // groups
    counts = (index for index in range(1, groups) if groups % index == 0)
    return next((count for count in counts if count * each % WIDTH == 0), groups)


def filter_layout(filters: Sizes, groups: int, dilations: tuple[int, int]) -> Prepack:
    """Return the panels of the filters of a ConvInteger; see `lines_of`.

    Args:
        filters: [M, C, kh, kw], of a depthwise convolution [M, 1, kh, kw].
        groups: Of the operator.
        dilations: How far places are apart, in lines and in pixels.
    """
    columns, channels, height, width = filters
    if groups == columns > channels == 1:
        rows = layout(height * width, columns)
        return replace(rows, then=(("Transpose", (1, 0)), ("Reshape", filters)))
    lines, run = height * width, channels
    if groups == 1:
        lines, run = lines_of((height, width), dilations, channels)
    vectors, panels = -(-run // GROUP), -(-columns // WIDTH)
    return Prepack(
        (panels, lines, vectors, WIDTH, GROUP), (0, 3, 1, 2, 4),
        (panels * WIDTH, lines, vectors * GROUP), (columns, lines, run),
        then=(("Reshape", (columns, height, width, channels)), ("Transpose", (0, 3, 1, 2))),
    )  # fmt: skip

"""Convolutions of single pixels: a matrix for the channels of each pixel."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from ortkit.rewrite.site import Site


def is_pointwise(site: Site) -> bool:
    """Say whether a Conv multiplies the channels of each pixel by a matrix, and does no more."""
    shape = site.shape(site.input(1))
    if shape is None or len(shape) < 3 or any(size != 1 for size in shape[2:]):
        return False
    if site.int("group", 1) != 1 or any(site.ints("pads") or ()):
        return False
    return prod(site.ints("strides") or ()) == 1


def with_channels(site: Site, sizes: ir.Value, channels: int, rank: int) -> ir.Value:
    """Return sizes, int64 [rank], of which the second is `channels`; new nodes if computed."""
    known = site.array(sizes)
    if known is not None:
        return site.constant([*known.tolist()[:1], channels, *known.tolist()[2:]])
    axis = site.constant([0])
    ends = [
        site.op("Slice", [sizes, site.constant([start]), site.constant([stop]), axis])
        for start, stop in ((0, 1), (2, rank))
    ]
    return site.op("Concat", [ends[0], site.constant([channels]), ends[1]], {"axis": 0})

"""Filters of convolutions over NHWC images, as their kernels read them."""

from __future__ import annotations

from math import prod
from typing import TypeAlias

from ortkit.kernels.prepack import Prepack

#: Of a filter, [M, C, kh, kw].
Sizes: TypeAlias = tuple[int, int, int, int]
#: Output channels that lie next to each other on CPUs.
VECTOR = 16


def by_channel(filters: Sizes) -> Prepack:
    """Return [ceil(M / 16), C kh kw, 16]."""
    vectors = -(-filters[0] // VECTOR)
    shape = (vectors, prod(filters[1:]), VECTOR)
    return Prepack(shape, (0, 2, 1), (vectors * VECTOR, *filters[1:]), filters, axes=(0,))


def by_tap(filters: Sizes) -> Prepack:
    """Return [ceil(M / 16), kh kw, C, 16]."""
    vectors = -(-filters[0] // VECTOR)
    shape = (vectors, prod(filters[2:]), filters[1], VECTOR)
    return Prepack(shape, (0, 3, 2, 1), (vectors * VECTOR, *filters[1:]), filters, axes=(0,))


def channels_last(filters: Sizes) -> Prepack:
    """Return [kh, kw, C, M]: of a depthwise convolution a row for each tap."""
    columns, depth, *kernel = filters
    return Prepack((*kernel, depth, columns), (3, 2, 0, 1), filters, filters)


def as_image(filters: Sizes) -> Prepack:
    """Return [M, kh, kw, C], as tensor cores read it."""
    columns, depth, *kernel = filters
    return Prepack((columns, *kernel, depth), (0, 3, 1, 2), filters, filters)


def bytes_as_image(filters: Sizes, groups: int, dilations: tuple[int, int]) -> Prepack:
    """Return `as_image` of filters in bytes, whose layout may depend on groups and dilations."""
    del groups, dilations
    return as_image(filters)

"""Inputs of a region: sizes for its names, and elements of three kinds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fuzz.values import Region, Value, numpy_dtype

#: Around a vector's width, and below it.
_SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48)
_LARGE = (64, 127, 257, 512)
#: Elements of the largest tensor: of a run that is judged, and of one that is only compared.
_FEW, _MANY = 1 << 13, 1 << 18
#: What elements are: ordinary numbers, small multiples of 1/2 (ties), or any bit pattern's kind.
NORMAL, TIES, SPECIAL = "normal", "ties", "special"
_EDGES = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, -1e-45, 3e38, -3e38, 6e4, 1e-7, 0.5)


@dataclass(frozen=True)
class Run:
    """One run of a region."""

    kind: str
    sizes: Mapping[str, int]
    feeds: Mapping[str, np.ndarray]
    is_judged: bool = True
    """Whether results are compared with the reference, and not only with each other."""


def runs(region: Region) -> list[Run]:
    """Return the runs: judged ones of every kind, one without elements, a large one."""
    rng = np.random.default_rng(zlib.crc32(region.seed.encode()))
    found = [_run(region, kind, _sizes(region, rng, _SIZES, _FEW), rng)
             for kind in (NORMAL, TIES, SPECIAL)]  # fmt: skip
    if region.names():
        found.append(_run(region, NORMAL, _sizes(region, rng, _SIZES, _FEW), rng))
        empty = _sizes(region, rng, _SIZES, _FEW)
        empty[str(rng.choice(region.names()))] = 0
        found.append(_run(region, NORMAL, empty, rng))
        large = _sizes(region, rng, _LARGE, _MANY)
        found.append(_run(region, NORMAL, large, rng, is_judged=False))
    return found


def _sizes(
    region: Region, rng: np.random.Generator, choices: tuple[int, ...], most: int
) -> dict[str, int]:
    """Draw sizes; smaller ones until no tensor has more than `most` elements."""
    sizes = {name: int(rng.choice(choices)) for name in region.names()}
    while sizes and _elements(region, sizes) > most and max(sizes.values()) > 1:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = max(1, sizes[largest] // 2)
    return sizes


def _elements(region: Region, sizes: Mapping[str, int]) -> int:
    shapes = [[size.at(sizes) for size in v.shape] for v in (*region.inputs, *region.outputs)]
    return max(math.prod(shape) for shape in shapes)


def _run(
    region: Region,
    kind: str,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    *,
    is_judged: bool = True,
) -> Run:
    feeds = {value.name: _elements_of(value, kind, sizes, rng) for value in region.inputs}
    return Run(kind, sizes, feeds, is_judged)


def _elements_of(
    value: Value, kind: str, sizes: Mapping[str, int], rng: np.random.Generator
) -> np.ndarray:
    shape = [size.at(sizes) for size in value.shape]
    if value.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if not value.is_float:
        low = 1 if value.is_positive else 0 if value.dtype.startswith("u") else -4
        return np.asarray(rng.integers(low, 5, shape), value.dtype)
    numbers = rng.standard_normal(shape) * 1.3
    if value.is_positive:
        numbers = 0.3 + np.abs(numbers)
    if kind == TIES:
        numbers = np.round(2 * numbers) / 2 + (0.5 if value.is_positive else 0.0)
    if kind == SPECIAL:
        edges = rng.choice(_EDGES, shape)
        numbers = np.where(rng.random(shape) < 0.15, edges, numbers)
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(numpy_dtype(value.dtype))

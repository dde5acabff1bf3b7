"""What products in float32 take, by ONNX Runtime and by ours, and their panels for each level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ortkit.kernels.anchor import NOMINAL_SIZE, ProductSizes
from ortkit.kernels.layouts.fp32_panels import layout
from ortkit.kernels.prepack import Prepack
from ortkit.targets import cpu

#: The level whose products have rates and panels of their own.
AVX2 = "x86-64-v3"
# Columns of a panel there: those of a tile.
_AVX2_WIDTH = 16
# Rows of such a depth may not stay in the second level of cache.
_DEEP = 2048
_Rates: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ProductRates:
    """Multiply-adds a nanosecond of one thread, by rows (up to this many).

    Args:
        runtime: ONNX Runtime's.
        ours: Of our kernel.
        deep: What ours are multiplied by for deep rows, by the columns of a panel.
        near_bytes: Of rows that lose nothing by being deep.
    """

    runtime: _Rates
    ours: _Rates
    deep: Mapping[int, float]
    near_bytes: int


#: By microarchitecture; "" for those that are not known apart. Measured interleaved on one core,
#: onnxruntime 1.31.1. ONNX Runtime adds a bias in its Gemm, and of the activations it knows a few
#: there.
#:
#: * A Xeon with AVX-512, 2026-11, 1 to 1500 rows, K and N of 768 to 3072: ours take 1.05 to 1.2
#:   times less than its Gemm. They take 0.98 to 1.0 where a K of 3072 meets 197 rows and more.
#: * Zen 4, 2026-11-27, processor time: 1.02 to 1.1 with a K of 512 and 768. With a K of 2048 and
#:   more the panels decide: 1.1 to 1.26 with 48 columns. With 64 columns 0.95 to 1.0 with 64 rows,
#:   1.07 to 1.15 with 197, 0.84 to 0.86 with 512.
RATES: Mapping[str, ProductRates] = {
    "": ProductRates(
        ((31, 36.0), (63, 53.0), (127, 60.0), (255, 66.0), (1 << 62, 71.0)),
        ((31, 42.0), (63, 60.0), (127, 66.0), (255, 72.0), (1 << 62, 76.0)),
        {32: 0.94, 48: 0.94, 64: 0.94},
        2 << 20,
    ),
    "zen4": ProductRates(
        ((63, 52.0), (127, 53.0), (1 << 62, 52.0)),
        ((63, 57.5), (127, 57.0), (1 << 62, 55.2)),
        {32: 0.88, 48: 1.0, 64: 0.88},
        0,
    ),
}
#: The same for AVX2. An Emerald Rapids held to it, 2026-11-29, processor time, K and N of 512 to
#: 3072: 1.03 to 1.24 up to 127 rows, 1.0 to 1.15 up to 255, and 1.0 to 1.1 beyond.
#: Zen 4 held to it gains nothing, so that there are none for the Zens without AVX-512.
AVX2_RATES: Mapping[str, ProductRates | None] = {
    "": ProductRates(
        ((31, 29.5), (127, 30.5), (255, 33.0), (1 << 62, 36.0)),
        ((31, 33.0), (127, 35.0), (255, 35.5), (1 << 62, 36.9)),
        {_AVX2_WIDTH: 1.0},
        2 << 20,
    ),
    "zen": None,
}


def rates_at(level: str) -> ProductRates | None:
    """Return the rates of a level's processors; None where ONNX Runtime's products are faster."""
    rates = AVX2_RATES if level == AVX2 else RATES
    return rates.get(cpu.microarchitecture_at(level), rates[""])


def packing(level: str, depth: int, columns: int) -> Prepack:
    """Return how a matrix is packed for a level."""
    return layout(depth, columns, _AVX2_WIDTH if level == AVX2 else 0)


def estimate(level: str, sizes: ProductSizes) -> tuple[float, float] | None:
    """Return nanoseconds of a product alone on one thread, ONNX Runtime's and ours."""
    rates, depth = rates_at(level), sizes.depth
    if rates is None:
        return None
    rows = NOMINAL_SIZE if sizes.rows is None else sizes.rows
    if level == AVX2 and sizes.of_sample:
        rows = sizes.of_sample  # more of them lose little, where few gain
    if level == AVX2 and rows * depth * 4 > rates.near_bytes:
        return None  # whisper's encoder, of 1,500 rows, took 1.05 times as long with kernels
    multiplies = rows * depth * sizes.columns
    before, after = (
        multiplies / next(rate for limit, rate in each if rows <= limit)
        for each in (rates.runtime, rates.ours)
    )
    if depth >= _DEEP and rows * depth * 4 > rates.near_bytes:
        after /= rates.deep[packing(level, depth, sizes.columns).shape[-1]]
    return before, after

"""What products in float32 cost one thread, by ONNX Runtime's kernels and by ours.

Measured interleaved on one core, onnxruntime 1.31.1. ONNX Runtime adds a bias in its Gemm, and of
the activations it knows a few there.

* A Xeon with AVX-512, 2026-11, 1 to 1500 rows, K and N of 768 to 3072: ours take 1.05 to 1.2 times
  less than its Gemm. They take 0.98 to 1.0 where a K of 3072 meets 197 rows and more.
* Zen 4, 2026-11-27, processor time: 1.02 to 1.1 with a K of 512 and 768. With a K of 2048 and more
  the panels decide: 1.1 to 1.26 with 48 columns. With 64 columns 0.95 to 1.0 with 64 rows, 1.07
  to 1.15 with 197, 0.84 to 0.86 with 512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ortkit.fusion.gemm.cpu_fp32 import Product
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.ort_costs import ARITHMETIC_NS
from ortkit.kernels.layouts.fp32_panels import layout
from ortkit.targets import cpu
from ortkit.targets.target import Target

#: The rates below are those of such processors.
LEVELS = "x86-64-v4"
#: The part of its own time that a product must gain: less than what regions must, whose time is
#: predicted less exactly.
LEAST_GAIN = 0.05
#: Rows of such a depth may not stay in the second level of cache.
_DEEP = 2048
_Rates: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ProductRates:
    """Multiply-adds a nanosecond, by rows (up to this many).

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


#: By microarchitecture; "" for those that are not known apart.
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


def multiplies(target: Target) -> bool:
    """Say whether the rates hold on a target's processors."""
    return target.resolved().level.startswith(LEVELS)


def rates_on(target: Target) -> ProductRates:
    """Return the rates of a target's processors: of this machine's, if it is the target."""
    level = target.resolved().level
    known = cpu.native_microarchitecture() if level == cpu.native_level() else ""
    return RATES.get(known, RATES[""])


def predict_product(one: Product, cost: CostModel, rates: ProductRates = RATES[""]) -> Prediction:
    """Return the times of a matmul and its epilogue before and after."""
    before = one.multiplies / _rate(rates.runtime, one.count)
    after = one.multiplies / _rate(rates.ours, one.count)
    if one.depth >= _DEEP and one.count * one.depth * 4 > rates.near_bytes:
        after /= rates.deep[layout(one.depth, one.columns).shape[-1]]
    if one.bias is not None:
        before += one.count * one.columns * ARITHMETIC_NS
    return cost.around((before, after), (), one.epilogue)


def _rate(rates: Sequence[tuple[int, float]], size: int) -> float:
    return next(rate for limit, rate in rates if size <= limit)

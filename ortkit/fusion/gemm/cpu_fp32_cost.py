"""What products in float32 cost one thread, by ONNX Runtime's kernels and by ours.

Measured on one core with AVX-512 (Xeon, onnxruntime 1.31.1, 2026-11) interleaved: ours take 1.05
to 1.2 times less than its Gemm on 1 to 1500 rows, depths and columns of 768 to 3072; 0.98 to 1.0
where a depth of 3072 meets 197 rows and more. ONNX Runtime adds a bias in its Gemm, and of the
activations it knows a few there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.fusion.gemm.cpu_fp32 import Product
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.fusion.regions.ort_costs import ARITHMETIC_NS, ORT_NS
from ortkit.kernels.tuning.calibration import Calibration
from ortkit.targets.target import Target

#: The rates below are those of such processors.
LEVELS = "x86-64-v4"
#: The part of its own time that a product must gain: less than what regions must, whose time is
#: predicted less exactly.
LEAST_GAIN = 0.05
#: Multiply-adds a nanosecond, by rows (up to this many): ONNX Runtime's, and ours.
_RUNTIME = ((31, 36.0), (63, 53.0), (127, 60.0), (255, 66.0), (1 << 62, 71.0))
_OURS = ((31, 42.0), (63, 60.0), (127, 66.0), (255, 72.0), (1 << 62, 76.0))
#: Rows of such a depth and of more bytes do not stay in the second level of cache.
_DEEP, _NEAR_BYTES, _DEEP_FACTOR = 2048, 2 << 20, 0.94


def multiplies(target: Target) -> bool:
    """Say whether the rates hold on a target's processors."""
    return target.resolved().level.startswith(LEVELS)


def predict_product(one: Product, calibration: Calibration) -> Prediction:
    """Return the times of a matmul and its epilogue before and after."""
    elements = one.count * one.columns
    before = calibration.node_ns + one.multiplies / _rate(_RUNTIME, one.count)
    after = calibration.kernel_ns + one.multiplies / _rate(_OURS, one.count)
    if one.depth >= _DEEP and one.count * one.depth * 4 > _NEAR_BYTES:
        after /= _DEEP_FACTOR
    if one.bias is not None:
        before += elements * ARITHMETIC_NS
    for node in one.epilogue:
        if node.op_type not in RUNTIME_APPLIES:
            each = elements * ORT_NS.get(node.op_type, ARITHMETIC_NS)
            before += calibration.node_ns + each
        after += elements * CostModel.operations(node) * calibration.operation_ns
    return Prediction(before, after)


def _rate(rates: Sequence[tuple[int, float]], size: int) -> float:
    return next(rate for limit, rate in rates if size <= limit)

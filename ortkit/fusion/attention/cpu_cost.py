"""What attention costs one thread, by ONNX Runtime's kernel and by ours.

Measured with onnxruntime 1.31.1 on a server processor with AVX-512 (2026-11), float32, from 16 to
1500 queries and keys and heads of 32 to 128. ONNX Runtime multiplies matrices of whole heads, and
writes all scores to memory; it makes a mask of causality, and goes through a mask element by
element. Ours keeps scores in the first cache and skips what causality hides, but computes whole
blocks of queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import Prediction, nominal
from ortkit.fusion.regions.ort_costs import ORT_NS
from ortkit.fusion.regions.region import FusedRegion
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.tuning.calibration import Calibration
from ortkit.rewrite.scope import Scope


@dataclass(frozen=True)
class _Rates:
    """Time of a multiply-add and additional time of a score, in ns."""

    multiply: float
    score: float


_RUNTIME = _Rates(1 / 85, 0.28)
_OURS = _Rates(1 / 75, 0.3)
# In bfloat16, in tiles.
_OURS_ROUNDED = _Rates(1 / 800, 0.3)
# Of a score: ONNX Runtime's mask of causality, and any mask in either.
_CAUSAL, _MASK, _OUR_MASK = 2.9, 2.0, 0.1
# Of a score, by the bytes of all: beyond the second cache they go through the next, or memory.
_SPILL = ((1 << 22, 0.0), (1 << 24, 0.4), (1 << 62, 1.2))
_SCORE_BYTES = 4
# Queries of our blocks; the last one of a head may be the smaller.
_BLOCK, _SMALL_BLOCK = 32, 16


def predict_attention(scope: Scope, region: FusedRegion, calibration: Calibration) -> Prediction:
    """Return what a region around one attention takes before and after.

    Args:
        scope: The region's; it knows the shapes of the attention's operands.
        region: One of its nodes is the attention. Lengths that are known at run time only are
            taken for `ortkit.fusion.regions.cost_model.NOMINAL_SIZE`, a batch for 1.
        calibration: Overhead of nodes and kernels.
    """
    node = next(each for each in region.nodes if each.op_type == "Attention")
    q, k, v = ([_nominal(*at) for at in enumerate(_shape(scope, x))] for x in node.inputs[:3])
    counts = [_heads(node, name, x) for name, x in (("q", q), ("kv", v))]
    heads, queries, keys = q[0] * counts[0], q[-2], k[-2]
    width = q[-1] + v[-1] if len(q) == 4 else q[-1] // counts[0] + v[-1] // counts[1]
    is_causal = "is_causal" in node.attributes and node.attributes["is_causal"].as_int() != 0
    has_mask = len(node.inputs) > 3 and node.inputs[3] is not None
    scores = heads * queries * keys
    each = _RUNTIME.score + width * _RUNTIME.multiply + _spill_ns(scores)
    each += (_CAUSAL if is_causal else 0.0) + (_MASK if has_mask else 0.0)
    before = calibration.node_ns + scores * each
    others = [each for each in region.nodes if each is not node]
    for other in others:
        before += calibration.node_ns + _elements(scope, other) * ORT_NS[other.op_type]
    rates = _OURS_ROUNDED if "Cast" in {each.op_type for each in others} else _OURS
    ours = rates.score + width * rates.multiply + (_OUR_MASK if has_mask else 0.0)
    computed = _computed(queries, keys, is_causal=is_causal)
    return Prediction(before, calibration.kernel_ns + heads * computed * ours)


def _shape(scope: Scope, value: ir.Value | None) -> tuple[Size, ...]:
    shape = None if value is None else scope.shapes.shape(value)
    return () if shape is None else tuple(shape)


def _nominal(axis: int, size: Size) -> int:
    return 1 if axis == 0 and not isinstance(size, int) else nominal(size)


def _elements(scope: Scope, node: ir.Node) -> int:
    total = 0
    for value in node.outputs:
        count = 1
        for at in enumerate(_shape(scope, value)):
            count *= _nominal(*at)
        total += count
    return total


def _heads(node: ir.Node, name: str, shape: list[int]) -> int:
    if len(shape) == 4:
        return shape[1]
    attribute = node.attributes.get(f"{name}_num_heads")
    return 1 if attribute is None else max(1, attribute.as_int())


def _spill_ns(scores: int) -> float:
    size = scores * _SCORE_BYTES
    return next((rate for limit, rate in _SPILL if size <= limit), _SPILL[-1][1])


def _computed(queries: int, keys: int, *, is_causal: bool) -> int:
    """Return how many scores of a head are computed."""
    whole, rest = divmod(queries, _BLOCK)
    blocks = [_BLOCK] * whole
    if rest:
        blocks.append(_SMALL_BLOCK if rest <= _SMALL_BLOCK else _BLOCK)
    if not is_causal:
        return sum(blocks) * keys
    ends = [number * _BLOCK + width for number, width in enumerate(blocks)]
    return sum(width * min(keys, end) for width, end in zip(blocks, ends, strict=True))

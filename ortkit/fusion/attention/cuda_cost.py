"""What attention takes on a GPU by ONNX Runtime's kernels and by ours, as measured.

On an H100 with onnxruntime-gpu 1.31.1, float16, batch 1, in CUDA graphs (2026-11-22), 12 heads of
64 and 16 of 128, as many queries as keys: 512, 1,024, 2,048 and 4,096. Between these, times go
with the number of operations. Those of Attention without a mask and of GroupQueryAttention, which
runs in no graph, are from the day before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from ortkit.fusion.attention.cuda_semantics import GROUPED, MULTI_HEAD, AttentionNode
from ortkit.fusion.regions.cost_model import Prediction, nominal
from ortkit.fusion.regions.cuda_cost_model import BANDWIDTH
from ortkit.kernels.attention_body import AttentionBody
from ortkit.kernels.tuning.gemm_times import LAUNCH_NS


@dataclass(frozen=True)
class _Times:
    """Microseconds by the number of positions, with 12 heads of 64 and 16 of 128."""

    narrow: tuple[tuple[int, float], ...]
    wide: tuple[tuple[int, float], ...]

    def of(self, body: AttentionBody, work: float) -> float:
        """Return nanoseconds; `work` is multiplications and sums of the whole attention."""
        is_narrow = max(body.width, body.v_width) <= _NARROW
        heads, width = (12, 64) if is_narrow else (16, 128)
        points = [
            (4.0 * length * length * heads * width, time * 1000)
            for length, time in (self.narrow if is_narrow else self.wide)
        ]
        first, least = points[0]
        if work <= first:  # it is the launch, and a walk through the keys
            return least * (1 - _LESS * (1 - work / first))
        for (begin, low), (end, high) in pairwise(points):
            if work <= end or end == points[-1][0]:
                return low + (high - low) * (work - begin) / (end - begin)
        return least


#: Wider heads are wide.
_NARROW = 64
#: What there is to save of the least time where there is next to no work.
_LESS = 0.4
#: More queries are no longer few, and keys are not split between blocks.
_FEW_QUERIES = 16
_PLAIN = _Times(
    ((512, 9.2), (1024, 13.6), (2048, 37.5)), ((512, 11.7), (1024, 18.3), (2048, 56.0))
)
_CAUSAL = _Times(
    ((512, 9.8), (1024, 13.7), (2048, 30.7)), ((512, 12.0), (1024, 18.6), (2048, 49.7))
)
_BIAS = _Times(((512, 13.7), (2048, 70.6)), ((512, 19.2), (2048, 106.3)))
_KEYS = _Times(((512, 39.1), (2048, 251.0)), ((512, 39.1), (2048, 251.0)))
_STANDARD = _Times(((512, 12.5), (2048, 59.6)), ((512, 12.5), (2048, 59.6)))
_STANDARD_MASK = _Times(((512, 35.1), (2048, 179.0)), ((512, 35.1), (2048, 179.0)))
_GROUPED = _Times(((512, 34.0), (2048, 98.0)), ((512, 34.0), (2048, 98.0)))
_OURS = _Times(
    ((512, 5.9), (1024, 11.5), (2048, 27.2), (4096, 99.5)),
    ((512, 8.0), (1024, 16.2), (2048, 55.4), (4096, 209.0)),
)
_OUR_CAUSAL = _Times(
    ((512, 6.3), (1024, 12.3), (2048, 27.1), (4096, 74.9)),
    ((512, 8.3), (1024, 16.4), (2048, 48.1), (4096, 141.0)),
)
#: Nothing padded.
_OUR_KEYS = _Times(
    ((512, 7.1), (1024, 12.9), (2048, 29.2)),
    ((512, 8.6), (1024, 17.6), (2048, 60.1), (4096, 232.0)),
)
#: A mask by query that copies of boxes reach, and any other.
_OUR_BOXES = _Times(
    ((512, 7.1), (1024, 15.8), (2048, 45.2), (4096, 160.0)), ((512, 9.3), (2048, 76.2))
)
_OUR_MASK = _Times(((512, 8.5), (2048, 43.9)), ((512, 10.3), (2048, 120.3)))
#: Keys whose masks are reached, in any type.
_BOXED = 16
#: One query, of 12 heads of 64 and 16 of 128, over 2,048 keys: nanoseconds, theirs and ours.
_ONE = ((7000.0, 5900.0), (9200.0, 9600.0))

#: A step over a cache, theirs and ours: nanoseconds, and times that all of it moves. Of one query
#: of 12 heads of 64, MultiHeadAttention with past keys and ours, microseconds: 12.3 and 5.7 after
#: 511 of them, 130 and 82 after 32,767; where heads are shared, or rows scattered, theirs need
#: more.
_STEP = (10_000.0, 3.5), (5_000.0, 2.2)


#: What a bias of Q, K and V costs within attention of fewer keys than copies of boxes are taken
#: for: of 32 samples of 12 heads at 512 positions 134.5 us instead of 73 (an H200, 2026-11-29), in
#: nanoseconds of an operation. One sample of them takes 1.9 us more, which is less than a launch.
_BIAS_NS = 61_500.0 / (4.0 * 32 * 12 * 64 * 512 * 512)
#: From as many keys on copies of boxes are taken, which add a bias to queries and results alone.
_BOXED_KEYS = 1024


def leaves_bias(found: AttentionNode) -> bool:
    """Say whether a bias of Q, K and V costs more within attention than in the product before.

    Args:
        found: The attention. Sizes known at run time only are nominal, a batch is 1.
    """
    body = found.body
    queries, keys = nominal(found.queries), nominal(found.keys)
    samples = found.batch if isinstance(found.batch, int) else 1
    if isinstance(found.keys, int) and keys >= _BOXED_KEYS:
        return False
    work = 2.0 * samples * body.heads * queries * keys * (body.width + body.v_width)
    return _BIAS_NS * work > 2 * LAUNCH_NS


def predict_attention(
    node: ir.Node, found: AttentionNode, *, is_split: bool, is_biased: bool = False
) -> Prediction:
    """Return what a region around one attention takes before and after.

    Args:
        node: The attention.
        found: What it computes. Sizes known at run time only are nominal, a batch is 1.
        is_split: Whether the region saves a Split of its operands.
        is_biased: Whether it saves a sum of rows and one before that.
    """
    body = found.body
    queries, keys = nominal(found.queries), nominal(found.keys)
    samples = found.batch if isinstance(found.batch, int) else 1
    saved = 0.0
    if found.caches:
        rows = samples * body.kv_heads * keys * body.dtype.itemsize
        once = rows * (body.width + body.v_width) / BANDWIDTH
        theirs, ours = (launches + passes * once for launches, passes in _STEP)
        return Prediction(theirs, ours)
    for _ in range(is_split + is_biased):
        columns = body.heads * body.width + body.kv_heads * (body.width + body.v_width)
        saved += LAUNCH_NS + 2 * samples * queries * columns * body.dtype.itemsize / BANDWIDTH
    if isinstance(found.queries, int) and queries <= _FEW_QUERIES:
        theirs, ours = _ONE[max(body.width, body.v_width) > _NARROW]
        return Prediction(theirs + saved, ours)
    work = 2.0 * samples * body.heads * queries * keys * (body.width + body.v_width)
    return Prediction(_theirs(node, body).of(body, work) + saved, _ours(found).of(body, work))


def _theirs(node: ir.Node, body: AttentionBody) -> _Times:
    kind = node.domain, node.op_type
    if kind == GROUPED:
        return _GROUPED
    if kind == MULTI_HEAD:
        if body.mask:
            return _KEYS if body.mask == "keys" else _BIAS
        return _CAUSAL if body.causal else _PLAIN
    return _STANDARD_MASK if body.mask else _STANDARD


def _ours(found: AttentionNode) -> _Times:
    body = found.body
    if body.mask:
        if found.is_of_keys:
            return _OUR_KEYS
        is_boxed = isinstance(found.keys, int) and found.keys % _BOXED == 0
        return _OUR_BOXES if is_boxed else _OUR_MASK
    return _OUR_CAUSAL if body.causal else _OURS

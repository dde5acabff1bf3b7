"""What attention takes on a GPU by ONNX Runtime's kernels and by ours, predicted.

Measured on an H100 with onnxruntime-gpu 1.31.1, float16, in CUDA graphs, 512 and 2,048 queries and
keys (2026-11-22): 12 heads of 64, and 16 of 128, take, in microseconds

                                          of 64            of 128
    MultiHeadAttention                  9.4    37.8     11.8     57.0
        unidirectional                  9.8    30.8     12.2     50.1
        with a bias                    13.9    70.9     19.3    106.4
        with a mask of keys            39.2   250.6
    Attention with a mask              35.0   177.2
    ours                                6.8    33.7      9.3     70.6
        causal                          7.3    31.6      9.8     64.5
        with a mask of keys             7.8    41         .       .
        with a mask for each query      8.4    47         .       .

which is a time for each launch and one for each multiplication. Attention and GroupQueryAttention
without a mask are as measured before: 12.5 and 59.6, 34 and 98.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.attention_bodies import AttentionBody
from ortkit.fusion.cost import Prediction, nominal
from ortkit.fusion.cuda_attention_nodes import GROUPED, MULTI_HEAD, AttentionNode
from ortkit.fusion.cuda_cost import BANDWIDTH, LAUNCH_NS
from ortkit.graph.dims import Size


@dataclass(frozen=True)
class _Rate:
    """Nanoseconds whatever the size, and operations in a nanosecond, of narrow and wide heads."""

    launch: float
    narrow: float
    wide: float


#: Wider heads are wide.
_NARROW = 64
_PLAIN, _CAUSAL, _BIAS, _KEYS = (
    _Rate(8000, 425e3, 712e3),
    _Rate(8800, 288e3, 425e3),
    _Rate(11000, 212e3, 370e3),
    _Rate(25000, 57e3, 57e3),
)
_STANDARD, _STANDARD_MASK, _GROUPED = (
    _Rate(9500, 257e3, 257e3),
    _Rate(25000, 85e3, 85e3),
    _Rate(30000, 95e3, 95e3),
)
_OURS, _OUR_CAUSAL, _OUR_KEYS, _OUR_MASK = (
    _Rate(5100, 449e3, 525e3),
    _Rate(5900, 249e3, 295e3),
    _Rate(5700, 364e3, 400e3),
    _Rate(6000, 313e3, 300e3),
)


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
    samples = _samples(found.batch)
    work = 2.0 * samples * body.heads * queries * keys * (body.width + body.v_width)
    work *= 0.5 if body.causal else 1.0
    before = _time(_theirs(node, body), body, work)
    for _ in range(is_split + is_biased):
        columns = body.heads * body.width + body.kv_heads * (body.width + body.v_width)
        before += LAUNCH_NS + 2 * samples * queries * columns * body.dtype.itemsize / BANDWIDTH
    return Prediction(before, _time(_ours(found), body, work))


def _samples(batch: Size) -> int:
    return batch if isinstance(batch, int) else 1


def _time(rate: _Rate, body: AttentionBody, operations: float) -> float:
    is_narrow = max(body.width, body.v_width) <= _NARROW
    return rate.launch + operations / (rate.narrow if is_narrow else rate.wide)


def _theirs(node: ir.Node, body: AttentionBody) -> _Rate:
    kind = node.domain, node.op_type
    if kind == GROUPED:
        return _GROUPED
    if kind == MULTI_HEAD:
        if body.mask:
            return _KEYS if body.mask == "keys" else _BIAS
        return _CAUSAL if body.causal else _PLAIN
    return _STANDARD_MASK if body.mask else _STANDARD


def _ours(found: AttentionNode) -> _Rate:
    body = found.body
    if body.mask and not found.is_of_keys:
        return _OUR_MASK
    if body.mask:
        return _OUR_KEYS
    return _OUR_CAUSAL if body.causal else _OURS

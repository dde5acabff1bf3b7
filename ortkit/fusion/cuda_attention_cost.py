"""What attention takes on a GPU by ONNX Runtime's kernels and by ours, predicted.

Measured on an H100 with onnxruntime-gpu 1.31.1, float16, in CUDA graphs (2026-11), heads of 64:
12 of them take, with 512 and 2,048 queries and keys, in microseconds

    MultiHeadAttention 9.9, 41.1; unidirectional 9.7, 31.9; with a bias 14.0, 72.4; with a mask of
    keys 38.4, 254; Attention 12.5, 59.6; with a mask 32.6, 172; GroupQueryAttention 34, 98
    ours 6.8, 32.7; causal 7.0, 32.4; with a mask of keys 7.6, 35; with one a query 14.8, 91

which is, near enough, a time for each launch and one for each multiplication.
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
    """Nanoseconds whatever the size, and operations in a nanosecond."""

    launch: float
    operations: float


_PLAIN, _CAUSAL, _BIAS, _KEYS = (
    _Rate(6000, 370e3), _Rate(7500, 265e3), _Rate(10000, 206e3), _Rate(24000, 56e3)
)  # fmt: skip
_STANDARD, _STANDARD_MASK, _GROUPED = _Rate(9500, 257e3), _Rate(23000, 86e3), _Rate(30000, 95e3)
_OURS, _OUR_CAUSAL, _OUR_KEYS, _OUR_MASK = (
    _Rate(5000, 465e3), _Rate(5300, 238e3), _Rate(5500, 430e3), _Rate(9700, 158e3)
)  # fmt: skip


def predict_attention(node: ir.Node, found: AttentionNode, *, is_split: bool) -> Prediction:
    """Return what a region around one attention takes before and after.

    Args:
        node: The attention.
        found: What it computes. Sizes known at run time only are nominal, a batch is 1.
        is_split: Whether the region saves a Split of its operands.
    """
    body = found.body
    queries, keys = nominal(found.queries), nominal(found.keys)
    samples = _samples(found.batch)
    work = 2.0 * samples * body.heads * queries * keys * (body.width + body.v_width)
    work *= 0.5 if body.causal else 1.0
    before = _time(_theirs(node, body), work)
    if is_split:
        columns = body.heads * body.width + body.kv_heads * (body.width + body.v_width)
        before += LAUNCH_NS + 2 * samples * queries * columns * body.dtype.itemsize / BANDWIDTH
    return Prediction(before, _time(_ours(found), work))


def _samples(batch: Size) -> int:
    return batch if isinstance(batch, int) else 1


def _time(rate: _Rate, operations: float) -> float:
    return rate.launch + operations / rate.operations


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

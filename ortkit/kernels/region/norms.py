"""Norms, pools and the like in a region's body, written in what kernels are made of."""

from __future__ import annotations

from collections.abc import Mapping

from ortkit.kernels.region import macros
from ortkit.kernels.region.body_node import BodyNode, Reads
from ortkit.refusal import RefusedError


def _softmax(node: BodyNode) -> list[int]:
    x = node.value(0)
    dim = node.axis(-1)
    function = macros.softmax if node.op_type == "Softmax" else macros.log_softmax
    return [function(node.b, x, dim)]


def _layer_norm(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    dims = range(node.axis(-1), rank)
    result, average, factor = macros.normalized(b, x, dims, node.number("epsilon", 1e-5))
    result = b.point("Mul", result, node.value(1))
    if node.has(2):
        result = b.point("Add", result, node.value(2))
    return [result, average, factor]


def _rms_norm(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    rank = len(b.shape(x))
    dims = range(node.axis(-1), rank)
    result = macros.rms_normalized(b, x, dims, node.number("epsilon", 1e-5))
    return [b.point("Mul", result, node.value(1))]


def _instance_norm(node: BodyNode) -> list[int]:
    x, scale, bias = node.values()
    epsilon = node.number("epsilon", 1e-5)
    return [macros.instance_norm(node.b, x, scale, bias, epsilon)]


def _group_norm(node: BodyNode) -> list[int]:
    x, scale, bias = node.values()
    groups = node.attributes["num_groups"]
    assert isinstance(groups, int)
    epsilon = node.number("epsilon", 1e-5)
    return [macros.group_norm(node.b, x, scale, bias, groups, epsilon)]


def _rotary(node: BodyNode) -> list[int]:
    if node.has(3):
        raise RefusedError("RotaryEmbedding with position_ids")
    x, cos, sin = node.values()[:3]
    return [
        macros.rotary(
            node.b, x, cos, sin,
            interleaved=bool(node.attributes.get("interleaved", 0)),
            rotary_dim=int(node.number("rotary_embedding_dim", 0)),
            heads=int(node.number("num_heads", 0)),
        )
    ]  # fmt: skip


def _arg(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    dim = node.axis(0)
    last = bool(node.attributes.get("select_last_index", 0))
    result = macros.position_of(b, x, dim, largest=node.op_type == "ArgMax", last=last)
    if node.attributes.get("keepdims", 1):
        return [result]
    return [b.reshape(result, [s for i, s in enumerate(b.shape(result)) if i != dim])]


def _global_pool(node: BodyNode) -> list[int]:
    b, x = node.b, node.value(0)
    dims = range(2, len(b.shape(x)))
    if node.op_type == "GlobalMaxPool":
        return [macros.extreme(b, "max", x, dims)]
    return [macros.mean(b, x, dims)]


NORMS: Mapping[str, Reads] = {
    "ArgMax": _arg,
    "ArgMin": _arg,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "RMSNormalization": _rms_norm,
    "RotaryEmbedding": _rotary,
    "Softmax": _softmax,
}

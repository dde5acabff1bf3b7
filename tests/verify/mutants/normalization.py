"""Wrong norms, attention and rotary embeddings, in nodes that compute them whole or in part."""

from __future__ import annotations

import numpy as np

from mutants.draft import Rng, Site
from mutants.kinds import Catalog

CATALOG = Catalog()
fault = CATALOG.fault

_LAYER, _RMS = ("LayerNormalization",), ("RMSNormalization", "SimplifiedLayerNormalization")
_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def _root(site: Site, x: str, *, is_centered: bool, has_root: bool, more: float = 1.0) -> str:
    """Write x divided by its deviation, or by what is under the root."""
    axis = site.numbers(-1)
    if is_centered:
        x = site.before("Sub", x, site.before("ReduceMean", x, axis))
    mean = site.before("ReduceMean", site.before("Mul", x, x), axis)
    if more != 1.0:
        mean = site.before("Mul", mean, site.like(more, x))
    safe = site.before("Add", mean, site.like(site.attribute("epsilon", 1e-5), x))
    return site.before("Div", x, site.before("Sqrt", safe) if has_root else safe)


def _rewritten(*, is_centered: bool, has_root: bool, more: float = 1.0, scales: bool = True):
    def plant(site: Site, rng: Rng) -> bool:
        if len(site.node.output) > 1 or len(site.node.input) < 2:
            return False
        x, scale, *bias = site.node.input
        found = _root(site, x, is_centered=is_centered, has_root=has_root, more=more)
        found = site.before("Mul", found, scale) if scales else found
        site.become("Add", found, bias[0]) if bias else site.become("Identity", found)
        return True

    return plant


fault("LayerNorm without mean", *_LAYER)(_rewritten(is_centered=False, has_root=True))
fault("LayerNorm without root", *_LAYER)(_rewritten(is_centered=True, has_root=False))
fault("LayerNorm with n - 1", *_LAYER)(_rewritten(is_centered=True, has_root=True, more=64 / 63))
fault("LayerNorm without scale", *_LAYER)(
    _rewritten(is_centered=True, has_root=True, scales=False)
)
fault("RMSNorm with mean", *_RMS)(_rewritten(is_centered=True, has_root=True))
fault("RMSNorm without root", *_RMS)(_rewritten(is_centered=False, has_root=False))
fault("RMSNorm without scale", *_RMS)(_rewritten(is_centered=False, has_root=True, scales=False))


@fault("bias of LayerNorm dropped", *_LAYER)
def _no_bias(site: Site, rng: Rng) -> bool:
    if len(site.node.input) < 3:
        return False
    del site.node.input[2:]
    return True


@fault("mean not subtracted", "Sub")
def _no_mean(site: Site, rng: Rng) -> bool:
    mean = site.draft.producer(site.holder, site.node.input[1])
    if mean is None or mean.op_type != "ReduceMean":
        return False
    site.become("Identity", site.node.input[0])
    return True


@fault("statistics of BatchNorm swapped", "BatchNormalization")
def _statistics(site: Site, rng: Rng) -> bool:
    scale, mean = site.node.input[2:4]
    site.node.input[2], site.node.input[3] = mean, scale
    return True


@fault("variance of BatchNorm without root", "BatchNormalization")
def _variance(site: Site, rng: Rng) -> bool:
    site.node.input[4] = site.before("Mul", site.node.input[4], site.node.input[4])
    return True


def _is_onnx(site: Site) -> bool:
    return site.op == "Attention" and site.node.domain in ("", "ai.onnx")


def _scale(factor: float):
    def plant(site: Site, rng: Rng) -> bool:
        scale = site.attribute("scale", 0.0)
        if scale:
            site.set_attribute("scale", scale * factor)
            return True
        query = site.node.input[0]
        site.node.input[0] = site.before("Mul", query, site.like(factor, query))
        return True

    return plant


fault("attention scale without root", *_ATTENTION)(_scale(0.25))
fault("attention scale of another width", *_ATTENTION)(_scale(0.7071))
fault("attention scale off by a percent", *_ATTENTION)(_scale(1.01))
fault("attention scale dropped", *_ATTENTION)(_scale(4.0))


@fault("mask dropped", "Attention", "Add")
def _no_mask(site: Site, rng: Rng) -> bool:
    if site.op == "Attention":
        if not _is_onnx(site) or len(site.node.input) < 4 or not site.node.input[3]:
            return False
        del site.node.input[3:]
        return True
    readers = site.draft.readers(site.holder, site.node.output[0])
    if not any(node.op_type == "Softmax" for node in readers):
        return False
    site.become("Identity", site.node.input[0])
    return True


@fault("causal mask dropped or added", "Attention")
def _causal(site: Site, rng: Rng) -> bool:
    if not _is_onnx(site):
        return False
    site.set_attribute("is_causal", 1 - site.attribute("is_causal", 0))
    return True


@fault("keys and values swapped", *_ATTENTION)
def _values(site: Site, rng: Rng) -> bool:
    first, second = site.node.input[1:3]
    site.node.input[1], site.node.input[2] = second, first
    return first != second


@fault("queries and keys swapped", *_ATTENTION)
def _queries(site: Site, rng: Rng) -> bool:
    first, second = site.node.input[:2]
    site.node.input[0], site.node.input[1] = second, first
    return first != second


def _low(value: float):
    def plant(site: Site, rng: Rng) -> bool:
        for at in range(len(site.node.input)):
            array = site.array(at)
            if array is not None and array.dtype.kind == "f" and (array < -1e4).any():
                site.set_array(at, np.where(array < -1e4, value, array).astype(array.dtype))
                return True
        return False

    return plant


fault("mask of -10000 for -inf", "Where", "Mul", "Add")(_low(-1e4))
fault("mask of -8 for -inf", "Where", "Mul", "Add")(_low(-8.0))


@fault("mask inverted", "Where", "And")
def _inverted(site: Site, rng: Rng) -> bool:
    if site.op == "Where":
        site.node.input[0] = site.before("Not", site.node.input[0])
    else:
        site.after(lambda end, good: end.before("Not", good))
    return True


@fault("heads of keys tiled", "Expand")
def _tiled(site: Site, rng: Rng) -> bool:
    """Repeat all heads for each, where each is to be repeated."""
    source = site.draft.producer(site.holder, site.node.input[0])
    if source is None or source.op_type != "Unsqueeze":
        return False

    def tiled(end: Site, good: str) -> str:
        shape = end.before("Shape", good)
        return end.before("Reshape", end.before("Transpose", good, perm=[0, 2, 1, 3, 4]), shape)

    site.after(tiled)
    return True


@fault("rotary: halves or pairs", "RotaryEmbedding")
def _pairs(site: Site, rng: Rng) -> bool:
    site.set_attribute("interleaved", 1 - site.attribute("interleaved", 0))
    return True


@fault("rotary: cosines and sines swapped", "RotaryEmbedding")
def _tables(site: Site, rng: Rng) -> bool:
    first = 2 if site.node.domain == "com.microsoft" else 1
    cosines, sines = site.node.input[first : first + 2]
    site.node.input[first], site.node.input[first + 1] = sines, cosines
    return True


@fault("rotary: wrong sign", "RotaryEmbedding")
def _sign(site: Site, rng: Rng) -> bool:
    at = 3 if site.node.domain == "com.microsoft" else 2
    site.node.input[at] = site.before("Neg", site.node.input[at])
    return True


@fault("rotary dropped", "RotaryEmbedding")
def _no_rotary(site: Site, rng: Rng) -> bool:
    site.become("Identity", site.node.input[0])
    return True

"""Readable names for regions: what they compute, in the order in which they compute it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir as ir

from ortkit.fusion.regions.access import RESHAPES

#: Longer names say how many nodes follow.
LIMIT = 40
_WORDS = {
    "IsNaN": "is_nan",
    "LayerNormalization": "layer_norm",
    "RMSNormalization": "rms_norm",
    "RotaryEmbedding": "rotary",
    "SimplifiedLayerNormalization": "rms_norm",
    "SkipLayerNormalization": "add_layer_norm",
    "SkipSimplifiedLayerNormalization": "add_rms_norm",
}
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def kind_of(nodes: Sequence[ir.Node]) -> str:
    """Return a name such as `bias_gelu` or `add_layer_norm`: an identifier of up to 40 letters."""
    words: list[str] = []
    for node in nodes:
        word = _word(node)
        if word and (not words or words[-1] != word):
            words.append(word)
    if not words:
        words = [_snake(nodes[-1].op_type)]
    text = "_".join(words)
    if len(text) <= LIMIT:
        return text
    kept = len(words)
    while len(text) > LIMIT:
        kept -= 1
        text = "_".join([*words[:kept], "and", str(len(words) - kept), "more"])
    return text


def _word(node: ir.Node) -> str:
    """Return the word for a node, empty for one that does not name what is computed."""
    if node.op_type in RESHAPES or node.op_type in ("Identity", "CastLike"):
        return ""
    if node.op_type == "Add" and _adds_row(node):
        return "bias"
    return _WORDS.get(node.op_type) or _snake(node.op_type)


def _adds_row(node: ir.Node) -> bool:
    """Say whether a constant vector is added, as linear layers do."""
    for value in node.inputs:
        if value is not None and value.is_initializer() and value.shape is not None:
            return len(value.shape) == 1
    return False


def _snake(op_type: str) -> str:
    return _CAPITAL.sub("_", op_type).lower()

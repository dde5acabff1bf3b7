"""Rotary position embedding: the reference, and its form in standard ONNX."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

#: The default domain has RotaryEmbedding from this version on.
ROTARY_SINCE_OPSET = 23


def rotated(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool, width: int
) -> np.ndarray:
    """Turn pairs of the first `width` channels of `x` by an angle for each pair.

    Args:
        x: [..., D].
        cos: [..., width / 2], broadcasting to the leading axes of `x`.
        sin: As `cos`.
        interleaved: Pairs are (0, 1), (2, 3), ...; else (i, i + width / 2).
        width: Even, at most D; the other channels stay.

    Returns:
        The shape of `x`; each pair (a, b) is (a cos - b sin, b cos + a sin).

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021);
        ONNX RotaryEmbedding-23.
    """
    first, second = pairs(width, interleaved=interleaved)
    result = np.array(x)
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result


def pairs(width: int, *, interleaved: bool) -> tuple[slice, slice]:
    """Return which of `width` channels are the first and the second of the pairs."""
    if interleaved:
        return slice(0, width, 2), slice(1, width, 2)
    return slice(0, width // 2), slice(width // 2, width)


def split_half_form(x: str, cos: str, sin: str, y: str, width: int) -> list[onnx.NodeProto]:
    """Return nodes that compute y = the rotation of all `width` channels, opset 13 and later.

    Args:
        x: Name of the input, [..., width]; pairs are (i, i + width / 2).
        cos: Name of the cosines, [..., width / 2], broadcasting to `x`.
        sin: As `cos`.
        y: Name of the output, the input's shape; inner values are named after it.
        width: Channels of `x`.

    Source:
        As `rotated`.
    """
    halves = helper.make_tensor("", onnx.TensorProto.INT64, [2], [width // 2, width // 2])
    a, b = f"{y}_a", f"{y}_b"
    return [
        helper.make_node("Constant", [], [f"{y}_halves"], value=halves),
        helper.make_node("Split", [x, f"{y}_halves"], [a, b], axis=-1),
        helper.make_node("Mul", [a, cos], [f"{y}_ac"]),
        helper.make_node("Mul", [b, sin], [f"{y}_bs"]),
        helper.make_node("Mul", [b, cos], [f"{y}_bc"]),
        helper.make_node("Mul", [a, sin], [f"{y}_as"]),
        helper.make_node("Sub", [f"{y}_ac", f"{y}_bs"], [f"{y}_first"]),
        helper.make_node("Add", [f"{y}_bc", f"{y}_as"], [f"{y}_second"]),
        helper.make_node("Concat", [f"{y}_first", f"{y}_second"], [y], axis=-1),
    ]

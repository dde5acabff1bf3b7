"""Rotary position embedding: the reference, and its form in standard ONNX."""

from __future__ import annotations

import numpy as np

#: The default domain has RotaryEmbedding from this version on.
ROTARY_SINCE_OPSET = 23


def rotated(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool, width: int
) -> np.ndarray:
    """Rotate pairs of the first `width` channels of `x` by an angle for each pair.

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

"""Rotary position embeddings, in each spelling.

Sizes: B batch, S positions, H heads, D per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

if TYPE_CHECKING:
    from models.builder import FloatArray, Tape

LONGEST = 512
"""How many positions the table holds that TorchScript exports carry with them."""


def inverse_frequencies(width: int, base: float) -> FloatArray:
    """Return base^(-2i/D) for i in [0, D/2)."""
    return (base ** (-np.arange(0, width, 2) / width)).astype(np.float32)


def cos_and_sin(b: Tape, positions: str, width: int, base: float = 10000.0) -> tuple[str, str]:
    """Write the cosines and sines for int64 `positions` [1 or B, S].

    Returns:
        Two values [1 or B, 1, S, D]; [1 or B, S, D/2] for the operator of opset 23.
    """
    frequencies = inverse_frequencies(width, base)
    if b.spelling.has_constant_nodes:
        angles = np.outer(np.arange(LONGEST, dtype=np.float32), frequencies)
        tables = np.concatenate([angles, angles], axis=-1)
        cos = b.op("Gather", b.parameter("rotary.cos_cached", np.cos(tables)), positions)
        sin = b.op("Gather", b.parameter("rotary.sin_cached", np.sin(tables)), positions)
        return b.unsqueeze(cos, 1), b.unsqueeze(sin, 1)
    column = b.op("Cast", b.unsqueeze(positions, 2), to=TensorProto.FLOAT)
    angle = b.op("Mul", column, b.parameter("rotary_emb.inv_freq", frequencies))
    if b.spelling.opset >= 23:
        return b.op("Cos", angle), b.op("Sin", angle)
    both = b.op("Concat", angle, angle, axis=-1)
    return b.unsqueeze(b.op("Cos", both), 1), b.unsqueeze(b.op("Sin", both), 1)


def rotate(b: Tape, x: str, cos: str, sin: str, heads: int, width: int) -> str:
    """Turn each pair (i, i + D/2) of `x` [B, H, S, D] by its position's angle."""
    if b.spelling.opset >= 23:
        return b.op("RotaryEmbedding", x, cos, sin, interleaved=0, num_heads=heads)
    middle = _half(b, x) if b.spelling.has_constant_nodes else b.ints(width // 2)
    end = b.ints(np.iinfo(np.int64).max)
    kept = b.op("Mul", x, cos)
    first = b.slice(x, b.ints(0), middle, 3)
    second = b.slice(x, middle, end, 3)
    rotated = b.op("Concat", b.op("Neg", second), first, axis=-1)
    return b.op("Add", kept, b.op("Mul", rotated, sin))


def _half(b: Tape, x: str) -> str:
    """Write half the size of the last axis as TorchScript traces `x.shape[-1] // 2`."""
    half = b.op("Div", b.as_scalar(b.dim(x, 3)), b.scalar(2))
    cast = b.op("Cast", b.op("Cast", half, to=TensorProto.INT64), to=TensorProto.INT64)
    return b.unsqueeze(cast, 0)

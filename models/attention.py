"""Scaled dot product attention and its masks, in each spelling.

Sizes: B batch, S queries, T keys, H heads, D per head.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from models.builder import Dim, Tape

LOWEST = float(np.finfo(np.float32).min)
"""What the newer exporter adds where a mask forbids; TorchScript adds -inf."""


def split_heads(b: Tape, x: str, batch: int | Dim, length: int | Dim, width: int) -> str:
    """Reshape [B, S, H*D] to [B, S, H, D]."""
    return b.reshape(x, batch, length, -1, width)


def heads_first(b: Tape, x: str) -> str:
    """Turn [B, S, H, D] into [B, H, S, D]."""
    return b.transpose(x, 0, 2, 1, 3)


def transpose_keys(b: Tape, k: str) -> str:
    """Turn [B, S, H, D] into the keys that `attend` wants.

    That is [B, H, D, S], in one step or in the two of torch.export; [B, H, S, D] for the
    Attention operator.
    """
    if b.spelling.has_constant_nodes:
        return b.transpose(k, 0, 2, 3, 1)
    if b.spelling.opset >= 23:
        return heads_first(b, k)
    return swap_last_axes(b, heads_first(b, k))


def swap_last_axes(b: Tape, k: str) -> str:
    """Turn [B, H, S, D] into the keys that `attend` wants; see `transpose_keys`."""
    if b.spelling.has_constant_nodes:
        return b.transpose(k, 0, 1, 3, 2)
    if b.spelling.opset >= 23:
        return k
    shape = b.op("Shape", k, start=0)
    width = b.op("Slice", shape, b.ints(-1), b.ints(np.iinfo(np.int64).max))
    length = b.op("Slice", shape, b.ints(-2), b.ints(-1))
    outer = b.op("Slice", shape, b.ints(np.iinfo(np.int64).min), b.ints(-2))
    flat_shape = b.op("Concat", b.ints(-1), length, width, axis=0)
    flat = b.op("Reshape", k, flat_shape, allowzero=0)
    swapped = b.transpose(flat, 0, 2, 1)
    return b.op("Reshape", swapped, b.op("Concat", outer, width, length, axis=0), allowzero=0)


def attend(
    b: Tape, q: str, k: str, v: str, width: int, *, mask: str | None, guard: bool = True
) -> str:
    """Compute softmax(q k / sqrt(D) + mask) v, the scale split evenly over q and k.

    Args:
        q: [B, H, S, D].
        k: [B, H, D, T]; [B, H, T, D] for the Attention operator of opset 23.
        v: [B, H, T, D].
        width: D, or 0 for a `q` that is scaled already.
        mask: Bool, broadcasts to [B, H, S, T], true where a key may be read; or None.
        guard: Turn the NaN of a row without any key into 0.

    Returns:
        [B, H, S, D].
    """
    if b.spelling.opset >= 23:
        inputs = (q, k, v) if mask is None else (q, k, v, mask)
        scale = width**-0.5 if width else 1.0
        return b.op("Attention", *inputs, is_causal=0, scale=scale, softcap=0.0)
    root = width**-0.25 if width else 1.0
    # torch.export leaves a scale of 1 out, TorchScript does not.
    if width or b.spelling.has_constant_nodes:
        q, k = b.op("Mul", q, b.scalar(root)), b.op("Mul", k, b.scalar(root))
    scores = b.op("MatMul", q, k)
    if mask is not None:
        scores = b.op("Add", scores, additive(b, mask))
    weights = b.op("Softmax", scores, axis=-1)
    if guard:
        weights = b.op("Where", b.op("IsNaN", weights), _number(b, 0.0), weights)
    return b.op("MatMul", weights, v)


def attend_plainly(b: Tape, q: str, k: str, v: str, width: int, mask: str | None) -> str:
    """Compute the same as `attend` in the older way: divide the scores, add a float mask."""
    scores = b.op("Div", b.op("MatMul", q, k), b.scalar(math.sqrt(width)))
    if mask is not None:
        scores = b.op("Add", scores, mask)
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), v)


def additive(b: Tape, mask: str) -> str:
    """Turn a bool mask into 0 and a very low number."""
    low = -math.inf if b.spelling.has_constant_nodes else LOWEST
    return b.op("Where", mask, _number(b, 0.0), _number(b, low))


def merge_heads(b: Tape, x: str, v: str, batch: int | Dim, length: int | Dim, width: int) -> str:
    """Turn [B, H, S, D] into [B, S, H*D].

    TorchScript first reshapes to what the shape already is, from sizes it reads off the
    product `x` and the values `v`.
    """
    if b.spelling.has_constant_nodes and b.spelling.opset >= 17:
        sizes = (b.dim(x, 0), -1, b.dim(x, 2), b.dim(v, 3))
        x = b.reshape(x, *sizes)
    merged = heads_first(b, x)
    return b.reshape(merged, batch, length, -1 if not b.spelling.has_constant_nodes else width)


def _number(b: Tape, value: float) -> str:
    """Write a float of shape [] or, in TorchScript's masks, [1]."""
    if b.spelling.has_constant_nodes:
        return b.const(np.array([value], np.float32))
    return b.scalar(value)

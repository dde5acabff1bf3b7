"""Weights of a few bits with a scale for each block, in float32; see `unrounded.py`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.verify.lowered.unrounded import Unrounding, used_part


def blocks_matrix(w: Unrounding, node: ir.Node) -> ir.Value | None:
    """Return the weights of a MatMulNBits: float32 [K, N].

    Its weights [N, blocks, bytes] are constant, and so are its zero points, if it has some.
    Its rows are in their own order. None for other nodes.
    """
    _, packed, scales, zeros, order = [*node.inputs, None, None][:5]
    assert packed is not None and scales is not None
    bits, block = node.attributes.get_int("bits", 4), node.attributes["block_size"].as_int()
    depth, width = (node.attributes[name].as_int() for name in ("K", "N"))
    words, zero_points = constant_array(packed), None if zeros is None else constant_array(zeros)
    if words is None or order is not None or (zeros is not None and zero_points is None):
        return None
    count = -(-depth // block)
    numbers = _unpacked(words, bits).reshape(width, count, -1)
    if zero_points is None:
        zero_points = np.array(2 ** (bits - 1))
    else:
        is_packed = zero_points.dtype == np.uint8
        zero_points = _unpacked(zero_points.reshape(width, -1), bits) if is_packed else zero_points
        zero_points = zero_points.reshape(width, -1)[:, :count, None]
    moved = w.moved(w.array(numbers.astype(np.float32)), used_part(numbers, bits))
    centered = w.op("Sub", moved, w.array(zero_points.astype(np.float32)))
    column = w.op("Reshape", w.wide(scales), w.constant(width, count, 1))
    blocks = w.op("Mul", centered, column)
    rows = w.op("Reshape", blocks, w.constant(width, count * block))
    cut = w.op("Slice", rows, w.constant(0), w.constant(depth), w.constant(1))
    return w.op("Transpose", cut, perm=[1, 0])


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers of a few bits: uint8 [..., bytes] to [..., n], the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed[..., None] >> shifts & np.uint8(2**bits - 1)
    return np.asarray(numbers.reshape(*packed.shape[:-1], -1))

"""Weights as integers: by column in 8 bits, by blocks of rows in 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Parts of a block's range that are tried as its scale: what is cut off gains the rest a bit.
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
_TINY = np.float32(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Blocks:
    """A weight [k, n] in blocks of rows, as MatMulNBits reads it."""

    packed: np.ndarray
    """[n, blocks, bytes], uint8: two numbers a byte, the earlier row in the low half."""
    scales: np.ndarray
    """[n, blocks], float32; the zero point is in the middle."""

    def widened(self, rows: int) -> np.ndarray:
        """Return the weight as MatMulNBits takes it apart: float32 [rows, n]."""
        numbers = np.stack([self.packed & 15, self.packed >> 4], axis=-1).astype(np.float32) - 8
        columns, count = self.scales.shape
        scaled = numbers.reshape(columns, count, -1) * self.scales[..., None]
        return np.ascontiguousarray(scaled.reshape(columns, -1)[:, :rows].T)


def by_column(
    weight: np.ndarray, bits: int = 8, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize [k, n] symmetrically, with a scale for each column.

    Args:
        weight: float32, finite.
        bits: 8 or 7; the numbers are int8 in either case.
        least: What the scales are at least, [n] or one number.

    Returns:
        int8 [k, n] and float32 [n].
    """
    largest = 2 ** (bits - 1) - 1
    scales = np.maximum(np.abs(weight).max(axis=0), _TINY * largest) / np.float32(largest)
    scales = np.maximum(scales, np.asarray(least, np.float32))
    return _rounded(weight / scales, largest), scales.astype(np.float32)


def by_channel(
    weight: np.ndarray, bits: int = 8, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize [n, ...] symmetrically, with a scale for each index of the first axis.

    Args:
        weight: float32, finite.
        bits: 8 or 7.
        least: What the scales are at least, [n] or one number.

    Returns:
        int8 [n, ...] and float32 [n].
    """
    numbers, scales = by_column(weight.reshape(weight.shape[0], -1).T, bits, least)
    return np.ascontiguousarray(numbers.T).reshape(weight.shape), scales


def by_blocks(weight: np.ndarray, block: int, bits: int = 4) -> Blocks:
    """Quantize [k, n] in blocks of rows; each scale is the one with the smallest square error.

    Args:
        weight: float32, finite.
        block: Rows of a block, a power of two from 16 on; the last is filled up with zeros.
        bits: 4.
    """
    rows, columns = weight.shape
    count = -(-rows // block)
    padded = np.zeros((columns, count * block), np.float32)
    padded[:, :rows] = weight.T
    parts = padded.reshape(columns, count, block)
    half = 2 ** (bits - 1)
    # The number that is largest in magnitude becomes -half, which has no positive twin.
    index = np.abs(parts).argmax(axis=2)[..., None]
    extreme = np.take_along_axis(parts, index, axis=2)
    best = np.full((columns, count, 1), np.inf, np.float32)
    scales = np.ones((columns, count, 1), np.float32)
    numbers = np.zeros(parts.shape, np.int8)
    for shrink in _SHRINKS:
        scale = (extreme * np.float32(shrink) / -half).astype(np.float32)
        scale[np.abs(scale) < _TINY] = 1.0
        tried = np.clip(np.rint(parts / scale), -half, half - 1)
        error = np.square(tried * scale - parts).sum(axis=2, keepdims=True)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
        numbers = np.where(better, tried, numbers).astype(np.int8)
    raised = (numbers + half).astype(np.uint8)
    packed = raised[..., 0::2] | (raised[..., 1::2] << 4)
    return Blocks(np.ascontiguousarray(packed), np.ascontiguousarray(scales[..., 0]))


def shift(before: np.ndarray, after: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return by how much a rounded weight moves each result on average; see `shifts.py`.

    Args:
        before: [k, n], or of a convolution [n, channels of a group, ...].
        after: The same, rounded.
        means: Of what is multiplied, by column or channel.

    Returns:
        float64 [n].
    """
    lost = after.astype(np.float64) - before
    if lost.ndim == 2:
        return np.asarray(means @ lost)
    by_channel = lost.reshape(*lost.shape[:2], -1).sum(axis=2)
    groups = means.size // by_channel.shape[1]
    own = means.reshape(groups, -1).repeat(by_channel.shape[0] // groups, axis=0)
    return np.asarray((by_channel * own).sum(axis=1))


def _rounded(scaled: np.ndarray, largest: int) -> np.ndarray:
    return np.asarray(np.clip(np.rint(scaled), -largest, largest).astype(np.int8))

"""Sizes that CUDA graphs are captured for: each serves those a little smaller."""

from __future__ import annotations

#: Sizes between two powers of two; one is at most an eighth larger than what it serves.
_STEPS = 8


def graph_size(size: int) -> int:
    """Return the size of the graph for a size: the next of 8 steps between powers of two.

    Sizes up to 16 have graphs of their own; 17 goes to 18, 100 to 104, 5,000 to 5,120.
    """
    if size <= 2 * _STEPS:
        return size
    step = (1 << (size - 1).bit_length()) // (2 * _STEPS)
    return -(-size // step) * step

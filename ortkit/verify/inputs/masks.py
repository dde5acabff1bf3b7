"""Masks, and lengths in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortkit.verify.inputs.plans import Plan

_Bools = NDArray[np.bool_]
_Ints = NDArray[np.int64]


def make_mask(shape: tuple[int, ...], plan: Plan, random: np.random.Generator) -> NDArray[Any]:
    """Make rows of ones and zeros; int64 of `shape`, a row is the last axis.

    Every second row is whole, as in padded batches. But for `mixed` and `zeros` each row has a
    one, and the first query of a causal model sees a key unless the padding is on the left.
    """
    if not shape:
        return np.ones(())
    rows, length = int(np.prod(shape[:-1])), shape[-1]
    ends = random.integers(1, length + 1, rows) if length else np.zeros(rows, np.int64)
    holes = random.random((rows, length)) < 0.7
    right = np.arange(length) < ends[:, None]
    ends[plan.seed % 2 :: 2] = length
    made: _Bools = {
        "right": lambda: np.arange(length) < ends[:, None],
        "left": lambda: (np.arange(length) < ends[:, None])[:, ::-1],
        "holes": lambda: _with_first(holes),
        "mixed": lambda: _mixed(right[:, ::-1], _with_first(holes)),
        "ones": lambda: np.ones_like(holes),
        "zeros": lambda: np.zeros_like(holes),
    }[plan.mask]()
    return made.astype(np.int64).reshape(shape)


def make_counted_mask(
    shape: tuple[int, ...], plan: Plan, random: np.random.Generator
) -> NDArray[Any]:
    """Make a mask whose rows are summed to a number of keys: as many as there are new tokens.

    Padding is on the right, as the sum is all that is read.
    """
    if not shape:
        return np.ones(())
    rows, length = int(np.prod(shape[:-1])), shape[-1]
    least = min(length, max(1, (plan.new or 1) if plan.past else 1))
    ends = random.integers(least, length + 1, rows) if length else np.zeros(rows, np.int64)
    ends[plan.seed % 2 :: 2] = length
    return (np.arange(length) < ends[:, None]).astype(np.int64).reshape(shape)


def _with_first(mask: _Bools) -> _Bools:
    mask[:, :1] = True
    return mask


def _mixed(left: _Bools, holes: _Bools) -> _Bools:
    """Take in turn a row padded on the left, one of zeros, one with holes and one of ones."""
    made = np.ones_like(left)
    made[0::4] = left[0::4]
    made[1::4] = False
    made[2::4] = holes[2::4]
    return made

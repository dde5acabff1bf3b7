"""An attention as its kernels see it: where Q, K and V lie, what is added to the scores."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent


@dataclass(frozen=True)
class Heads:
    """Heads of rows in one of the region's tensors.

    Args:
        tensor: Index of the tensor.
        stacked: Whether it is [batch, heads, rows, width], and not [batch, rows, columns].
        heads: How many there are.
        width: Of one row of one head.
        batch: The number of samples.
        length: The number of rows.
        pitch: Elements from a row to the next.
        first: The column where the first head begins.
    """

    tensor: int
    stacked: bool
    heads: int
    width: int
    batch: Extent
    length: Extent
    pitch: int
    first: int = 0


@dataclass(frozen=True)
class Mask:
    """What is added to the scores, or which of them count.

    Args:
        tensor: The input, its last two dims (queries or 1) and keys.
        fill: Of a condition: what is added where it does not hold; None for numbers to be added.
        by_row: Whether each query has its own.
        by_batch: Whether each sample has its own.
        by_head: Whether each head has its own.
    """

    tensor: int
    fill: float | None
    by_row: bool
    by_batch: bool
    by_head: bool


@dataclass(frozen=True)
class Causal:
    """Which keys a query sees by their places.

    Args:
        is_last: Whether the last query sees the last key, and not the first the first alone.
        window: How many it sees, 0 for all up to its own.
    """

    is_last: bool
    window: int = 0


@dataclass(frozen=True)
class Cache:
    """Keys or values of earlier steps, which the new ones are appended to.

    Args:
        past: The input, [batch, heads, rows, width].
        present: The output, the same with the new rows appended, or one written into it.
        rows: Of the past.
        at: The input that says where one new row goes, [1, 1]; None if it is appended.
    """

    past: int
    present: int
    rows: Extent
    at: int | None = None


@dataclass(frozen=True)
class AttentionForm:
    """The region. The result lies as `y` says; K and V are the new rows if there are caches."""

    signature: RegionSignature
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    mask: Mask | None
    scale: float
    softcap: float
    causal: Causal | None
    bias: int | None = None
    """The input [columns] that is added to all rows of the one that Q, K and V are parts of."""
    caches: tuple[Cache, Cache] | None = None
    """Of keys and values."""
    factor: float | None = None
    """What the result is divided by, and rounded to eight bits; None where it is not rounded."""

"""Many products of the same sizes: which of an operand's tensors each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.refusal import Refused

from .body import Body

#: (d, n): product b has tensor b // d % n, or b // d where n is 0.
BatchStride: TypeAlias = tuple[int, int]
Shape: TypeAlias = Sequence[int | str]
_MOST_RANK = 6


@dataclass(frozen=True)
class Batch:
    """Products that are computed together.

    Args:
        count: Number of matrix products.
        strides: Indices of the left operand, the right one, and the operands of the epilogue.
    """

    count: Extent
    strides: tuple[BatchStride, ...]


def batch_of(signature: RegionSignature, x: int, w: int, reads: Sequence[int]) -> Batch | Refused:
    """Return how the operands of a region belong to its products.

    Args:
        signature: The region's; the last two dims of its result are a product's.
        x: The left factor.
        w: The right one.
        reads: Operands of the epilogue: one row, or rows, for each or some.
    """
    inputs, whole = signature.inputs, signature.outputs[0].shape
    strides = [
        stride_of(inputs[read].shape, whole, is_read=read in reads) for read in (x, w, *reads)
    ]
    found = tuple(stride for stride in strides if stride is not None)
    if len(found) < len(strides):
        return Refused("products that share their operands in no regular way")
    return Batch(product(map(extent_of, whole[:-2])), found)


def stride_of(shape: Shape, whole: Shape, *, is_read: bool) -> BatchStride | None:
    """Return which tensor of an operand each product has; None if there is no such rule.

    Args:
        shape: The operand's.
        whole: The result's.
        is_read: True for an operand of the epilogue, false for a factor.
    """
    if is_read and (shape[-1:] != whole[-1:] or shape[-2:-1] not in ((), (1,), whole[-2:-1])):
        return None
    batch = whole[:-2]
    own = (*(1,) * (len(whole) - len(shape)), *shape)[:-2]
    if len(own) != len(batch) or any(a not in (1, b) for a, b in zip(own, batch, strict=True)):
        return None
    varying = [axis for axis, size in enumerate(own) if size != 1]
    if not varying:
        return 1, 1
    first, end = varying[0], varying[-1] + 1
    behind, run = batch[end:], batch[first:end]
    if tuple(own[first:end]) != tuple(run):
        return None
    if all(size == 1 for size in batch[:first]):
        sizes = [size for size in behind if isinstance(size, int)]
        return (prod(sizes), 0) if len(sizes) == len(behind) else None
    known = [size for size in (*run, *behind) if isinstance(size, int)]
    if len(known) < len(run) + len(behind):
        return None
    return prod(known[len(run) :]), prod(known[: len(run)])


def transposed_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is with its last two axes swapped."""
    swaps = ((*range(rank), rank + 1, rank) for rank in range(_MOST_RANK - 1))
    return body.input_through(name, *swaps)

"""Causal masks, in each spelling.

Sizes: B batch, S queries, T keys; the queries are the last of the T positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from models import layers

if TYPE_CHECKING:
    from models.builder import Dim, Tape

LOWEST = float(np.finfo(np.float32).min)


def gather_at(b: Tape, table: str, row: str, column: str) -> str:
    """Look `table` [B, N] up at every pair of `row` [B, 1, 1, 1] and `column`, as
    torch.export writes indexing with two tensors."""
    shape = b.op("Shape", b.op("Max", row, column), start=0)
    pairs = [b.unsqueeze(b.op("Expand", index, shape), -1) for index in (row, column)]
    return b.op("GatherND", table, b.op("Concat", *pairs, axis=-1), batch_dims=0)


def packed_causal(b: Tape, batch: Dim, length: Dim, positions: str) -> str:
    """Write torch.export's bool mask [B, 1, S, S] for a decoder without a padding mask.

    It numbers documents by where `positions` [1, S] do not count up, and lets a query read
    earlier keys of its own document. Positions that count from 0 make that exactly causal.
    """
    one = b.ints(1)
    spread = b.op("Expand", positions, b.op("Concat", b.as_vector(batch), one, axis=0))
    before = b.op("Sub", b.slice(spread, b.ints(0), one, 1), b.scalar(1))
    padded = b.op("Concat", before, spread, axis=-1)
    longer = b.op(
        "Reshape", b.op("Add", b.scalar(1), b.as_scalar(length)), b.ints(-1), allowzero=0
    )
    previous = b.op("Slice", padded, b.ints(0), b.as_vector(length), b.ints(-1), one)
    current = b.op("Slice", padded, one, longer, b.ints(-1), one)
    is_next = b.op("Equal", b.op("Sub", current, previous), b.scalar(1))
    starts = b.op("Cast", b.op("Not", is_next), to=TensorProto.INT64)
    document = b.op("CumSum", starts, b.scalar(-1), exclusive=0, reverse=0)
    row = b.unsqueeze(b.unsqueeze(b.range(batch), 1, 2), 3)
    grid = b.unsqueeze(b.range(length), 0, 1)
    query, key = b.unsqueeze(grid, 3), b.unsqueeze(grid, 2)
    same = b.op("Equal", gather_at(b, document, row, query), gather_at(b, document, row, key))
    mine = b.op("And", b.scalar(True), same)
    at_query, at_key = gather_at(b, spread, row, query), gather_at(b, spread, row, key)
    return b.op("And", mine, b.op("LessOrEqual", at_key, at_query))


def padded_causal(b: Tape, batch: Dim, length: Dim, past: Dim, mask: str) -> str:
    """Write torch.export's bool mask [B, 1, S, T] out of a padding mask [B, T]."""
    is_token = b.op("Cast", mask, to=TensorProto.BOOL)
    total = b.op("Add", b.as_scalar(length), b.as_scalar(past))
    places = b.op("Add", b.range(length), b.as_scalar(past))
    keys = b.op("Range", b.scalar(0), total, b.scalar(1))
    row = b.unsqueeze(b.unsqueeze(b.range(batch), 1, 2), 3)
    query = b.unsqueeze(b.unsqueeze(places, 0, 1), 3)
    key = b.unsqueeze(b.unsqueeze(keys, 0, 1), 2)
    earlier = b.op("And", b.scalar(True), b.op("LessOrEqual", key, query))
    allowed = b.op("And", earlier, gather_at(b, is_token, row, key))
    size = b.op("Reshape", total, b.ints(-1), allowzero=0)
    sizes = (b.as_vector(batch), b.ints(1), b.as_vector(length), size)
    return b.op("Expand", allowed, b.op("Concat", *sizes, axis=0))


def filled_causal(b: Tape, batch: Dim, length: Dim, past: Dim | None = None) -> str:
    """Write transformers' older float mask [B, 1, S, T]: fill with the lowest number, then put
    zeros on and below the diagonal, and in front for the past."""
    count = b.range(length)
    full = _full(b, LOWEST, b.shape(length, length))
    below = b.op("Less", count, b.reshape(b.op("Add", count, b.scalar(1)), length, 1))
    mask = b.op("Where", below, b.scalar(0.0), full)
    if past is not None:
        mask = b.op("Concat", _full(b, 0.0, b.shape(length, past)), mask, axis=-1)
    mask = b.unsqueeze(b.unsqueeze(mask, 0), 1)
    return layers.expand(b, mask, b.shape(batch, 1, length, -1))


def expanded_padding(b: Tape, batch: Dim, length: Dim, mask: str) -> str:
    """Write transformers' older float form [B, 1, S, T] of a padding mask [B, T]."""
    wide = b.unsqueeze(b.unsqueeze(mask, 1), 2)
    spread = layers.expand(b, wide, b.shape(batch, 1, length, b.dim(mask, 1)))
    inverted = b.op("Sub", b.scalar(1.0), b.op("Cast", spread, to=TensorProto.FLOAT))
    is_hidden = b.op("Cast", inverted, to=TensorProto.BOOL)
    return b.op("Where", is_hidden, b.scalar(LOWEST), inverted)


def _full(b: Tape, value: float, shape: str) -> str:
    fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
    return b.op("ConstantOfShape", shape, value=fill)

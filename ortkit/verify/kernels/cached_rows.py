"""Inputs of a kernel of attention over a cache: its sizes and lengths have to agree.

Rows of a cache that no operator writes hold anything. So a cache is as long as all that is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortkit.graph.symbolic.dims import Size
from ortkit.verify.kernels.blocks import Operand

_Q, _KEYS, _PAST, _LENGTHS, _TOTAL = 0, 1, (3, 4), 5, 6


@dataclass(frozen=True)
class CachedRows:
    """The numbers of inputs that have to agree.

    Args:
        q: [batch, new rows, columns].
        past: The caches, [batch, heads, rows, width].
        lengths: [batch]: how many rows each sample has then, less one.
        total: The most of them.
        heads: Of a row of `q`.
    """

    q: int
    past: tuple[int, ...]
    lengths: int
    total: int
    heads: int

    def fits(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Say whether there are lengths for any sizes."""
        del shapes
        return True

    def sizes(self, shapes: Sequence[tuple[int, ...]], number: int) -> Sequence[tuple[int, ...]]:
        """Return the sizes of a case as they are."""
        del number
        return shapes

    def agree(self, operands: list[Operand], seed: int) -> list[Operand]:
        """Return operands with lengths: of a whole cache, or of a prompt that begins a new one."""
        rows = operands[self.q].array.shape[1]
        past = operands[self.past[0]].array.shape[2]
        total = rows if seed % 2 and past <= rows else past + rows
        found = list(operands)
        for number, value in ((self.lengths, total - 1), (self.total, total)):
            like = operands[number].array
            found[number] = Operand(np.full(like.shape, value, like.dtype))
        return found

    def known(self, shapes: Sequence[tuple[Size, ...]]) -> list[tuple[Size, ...]]:
        """Return shapes of all inputs with the width of caches, whatever the model calls it."""
        found, columns = list(shapes), shapes[self.q][-1]
        if isinstance(columns, int):
            for number in self.past:
                found[number] = (*found[number][:-1], columns // self.heads)
        return found


def cached_rows(function: onnx.FunctionProto) -> CachedRows | None:
    """Return which inputs of a body have to agree, None if none have to."""
    nodes = [node for node in function.node if node.op_type == "GroupQueryAttention"]
    if len(nodes) != 1:
        return None
    inputs = {name: number for number, name in enumerate(function.input)}
    names = [*nodes[0].input, *[""] * (_TOTAL + 1)]
    found = [inputs.get(names[index]) for index in (_Q, *_PAST, _LENGTHS, _TOTAL)]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found):
        return None
    q, *past, lengths, total = numbers
    count = {
        attribute.name: int(attribute.i)
        for attribute in nodes[0].attribute
        if attribute.type == attribute.INT
    }
    heads = count["num_heads"] + (0 if names[_KEYS] else 2 * count["kv_num_heads"])
    return CachedRows(q, tuple(past), lengths, total, heads)
